"""Parity results on a terminal: ops by statuses, then what failed and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.bundle import replay_command

__all__ = ["print_parity"]

_MOST_REASONS = 20


def print_parity(screen: Console, results: Sequence[ParityResult]) -> None:
    """A row an op: cases by status, worst share of the budget, instructions, bytes, time."""
    statuses = [s for s in OpStatus if any(result.status is s for result in results)]
    table = Table(title="Kernel parity", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("op", no_wrap=True)
    for status in statuses:
        table.add_column(status.value.replace("_", " "), justify="right")
    for heading in ("of budget", "instructions", "DMA KiB", "ms"):
        table.add_column(heading, justify="right")
    for op in dict.fromkeys(result.op for result in results):
        of_op = [result for result in results if result.op == op]
        table.add_row(op, *_status_cells(of_op, statuses), *_figures(of_op))
    if len({result.op for result in results}) > 1:
        table.add_section()
        table.add_row("all", *_status_cells(results, statuses), *_figures(results))
    screen.print(table)
    _print_failures(screen, [r for r in results if r.status is not OpStatus.PASS])


def _status_cells(results: Sequence[ParityResult], statuses: Sequence[OpStatus]) -> list[str]:
    counts = Counter(result.status for result in results)
    return [str(counts[status] or "") for status in statuses]


def _figures(results: Sequence[ParityResult]) -> list[str]:
    judged = [e for r in results for e in r.errors if e.num_mismatched is None]
    worst = f"{max(e.budget_ratio for e in judged):.3g}" if judged else "exact"
    dma_kib = sum(r.counters.get("dma_bytes", 0) for r in results) / 1024
    return [
        worst if any(r.errors for r in results) else "",
        f"{sum(r.counters.get('instructions', 0) for r in results):,.0f}",
        f"{dma_kib:,.0f}",
        f"{sum(sum(r.elapsed_ms) for r in results):,.0f}",
    ]


def _print_failures(screen: Console, failed: Sequence[ParityResult]) -> None:
    """One entry a reason; a kernel that fails the same way everywhere is one line."""
    reasons: dict[tuple[OpStatus, str, str], list[ParityResult]] = {}
    for result in failed:
        reasons.setdefault((result.status, result.op, result.message), []).append(result)
    for (status, _, _), results in list(reasons.items())[:_MOST_REASONS]:
        more = f" and {len(results) - 1} more" if len(results) > 1 else ""
        screen.print(Text(f"{status.value}  {results[0].case_id}{more}", style="bold red"))
        screen.print(f"  {results[0].message}", markup=False)
        if results[0].bundle:
            screen.print(f"  {replay_command(Path(results[0].bundle), results[0].backend)}")
    if len(reasons) > _MOST_REASONS:
        screen.print(f"and {len(reasons) - _MOST_REASONS} more reasons in the ledger")
