"""`neuron-harness ops`: the signature sheet, and who serves each op."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

from harness.cli.session import console
from harness.core.ops import OP_SHEET, OpSpec

__all__ = ["OpPresence", "presence_of", "register"]


@dataclass(frozen=True, slots=True)
class OpPresence:
    """What exists for an op.

    Attributes:
        num_cases: of its suite's full tier; None without a suite.
    """

    reference: bool
    kernel: bool
    num_cases: int | None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ops")(ops)


def ops(
    isa: Annotated[bool, typer.Option("--isa", help="The interpreter's instructions.")] = False,
) -> None:
    """List the ops with their reference, kernel and suite, or the interpreter's instructions."""
    if isa:
        _print_isa()
    else:
        _print_ops()


def presence_of(spec: OpSpec) -> OpPresence:
    """Looked up without importing torch or an SDK."""
    from kernels.catalog import KERNELS
    from suites.loader import list_suites, load_op_suite

    num_cases = None
    if spec.stem in list_suites("ops"):
        suite = load_op_suite(spec.name)
        num_cases = sum(case.op == spec.name for case in suite.cases)
    reference = importlib.util.find_spec(f"references.{spec.stem}") is not None
    return OpPresence(reference, spec.name in KERNELS, num_cases)


def _print_ops() -> None:
    table = Table(title="Ops", title_justify="left")
    for heading in ("op", "reference", "kernel", "cases", "takes", "gives"):
        table.add_column(heading, no_wrap=heading == "op")
    for spec in OP_SHEET.values():
        presence = presence_of(spec)
        table.add_row(
            spec.name,
            "yes" if presence.reference else "-",
            "yes" if presence.kernel else "-",
            "-" if presence.num_cases is None else str(presence.num_cases),
            ", ".join(f"{v.name}[{v.shape}]" if v.shape else v.name for v in spec.inputs),
            ", ".join(f"{v.name}[{v.shape}]" for v in spec.outputs),
        )
    console().print(table, markup=False)


def _print_isa() -> None:
    from kernels.interpreter.support import support_table

    rows = support_table()
    table = Table(title="Bundled NKI interpreter", title_justify="left")
    for heading in ("module", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("function", overflow="fold", max_width=26)
    table.add_column("why")
    for row in rows:
        table.add_row(row.module, row.state, row.name, row.reason)
    counts = Counter(row.state for row in rows)
    screen = console()
    screen.print(table, markup=False)
    screen.print(", ".join(f"{counts[state]} {state}" for state in ("supported", "partly", "not")))
