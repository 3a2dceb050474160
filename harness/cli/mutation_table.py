"""Mutation scores on a terminal and in the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.core.errors import ExitCode
from harness.core.metric import Direction, Metric, MetricKind
from harness.run.mutation import MutantVerdict, caught_share
from harness.run.store import RunStore

__all__ = ["GOAL", "print_mutants", "record_share"]

GOAL = 0.95
_OUTCOMES = ("CAUGHT", "SURVIVED", "EQUIVALENT")


def print_mutants(screen: Console, verdicts: Sequence[MutantVerdict], seed: int) -> None:
    """A row an op, how mutants were caught, and every survivor by kernel and instruction."""
    table = Table(title=f"Mutants (seed {seed})", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("op", no_wrap=True)
    for heading in (*_OUTCOMES, "share caught"):
        table.add_column(heading, justify="right")
    for op in dict.fromkeys(verdict.mutant.op for verdict in verdicts):
        of_op = [verdict for verdict in verdicts if verdict.mutant.op == op]
        table.add_row(op, *_cells(of_op))
    table.add_section()
    table.add_row("all", *_cells(verdicts))
    screen.print(table)
    by_status = Counter(v.status for v in verdicts if v.outcome == "CAUGHT")
    screen.print("caught as " + ", ".join(f"{name} {n}" for name, n in by_status.most_common()))
    for verdict in verdicts:
        if verdict.outcome == "SURVIVED":
            screen.print(f"SURVIVED  {verdict.mutant}", markup=False)


def record_share(store: RunStore, verdicts: Sequence[MutantVerdict]) -> ExitCode:
    """Write the share as a metric; PASS from 95 % on.

    Raises:
        VacuousError: no mutant changed any output.
    """
    share = caught_share(verdicts)
    name = "parity.mutation.caught_share"
    metric = Metric(name, (share,), "1", Direction.HIGHER, MetricKind.DETERMINISTIC)
    store.append("metric", name, metric)
    return ExitCode.PASS if share >= GOAL else ExitCode.MISMATCH


def _cells(verdicts: Sequence[MutantVerdict]) -> list[str]:
    counts = Counter(verdict.outcome for verdict in verdicts)
    counted = counts["CAUGHT"] + counts["SURVIVED"]
    share = f"{counts['CAUGHT'] / counted:.1%}" if counted else "-"
    return [*(str(counts[outcome] or "") for outcome in _OUTCOMES), share]
