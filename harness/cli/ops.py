"""`neuron-harness ops`: the signature sheet, and who serves each op."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from harness.cli.session import console
from harness.core.ops import OP_SHEET, OpSpec

__all__ = ["OpPresence", "isa_states", "presence_of", "register"]


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


def isa_states() -> Iterator[tuple[str, str, str]]:
    """(module, function, "executed", "refused" or "absent") of every public NKI function.

    "refused": there with its signature, but trn2 lacks it, so calling it is a named error.
    """
    interpreter = importlib.import_module("kernels.interpreter")
    folder = Path(str(interpreter.__file__)).parent
    sheet = json.loads((folder / "nki_signatures.json").read_text(encoding="utf-8"))
    refused = set(importlib.import_module("kernels.interpreter.isa.unavailable").__all__)
    for public_name in ("nki.isa", "nki.language"):
        module = importlib.import_module(f"kernels.interpreter.{public_name.partition('.')[2]}")
        for function in sheet["modules"][public_name]["functions"]:
            if not hasattr(module, function):
                yield public_name, function, "absent"
            elif public_name == "nki.isa" and function in refused:
                yield public_name, function, "refused"
            else:
                yield public_name, function, "executed"


def _print_isa() -> None:
    table = Table(title="Bundled NKI interpreter", title_justify="left")
    for heading in ("module", "state", "functions", "names"):
        table.add_column(heading)
    states = list(isa_states())
    for module in dict.fromkeys(state[0] for state in states):
        for kind in ("executed", "refused", "absent"):
            names = [name for of, name, state in states if (of, state) == (module, kind)]
            if names:
                table.add_row(module, kind, str(len(names)), ", ".join(names))
    console().print(table, markup=False)
