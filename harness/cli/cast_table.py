"""`neuron-harness parity --casts`: every cast, exhaustively, on a terminal and in the ledger."""

from __future__ import annotations

import time

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.core.errors import ExitCode
from harness.core.metric import Direction, Metric, MetricKind
from harness.run.casts import CastVerdict, judge_cast, num_inputs
from harness.run.store import RunStore

__all__ = ["judge_casts"]


def judge_casts(store: RunStore, screen: Console) -> ExitCode:
    """Judge every implementation; one wrong answer is a mismatch."""
    from harness.cli.cast_subjects import cast_subjects

    start = time.perf_counter()
    verdicts = [judge_cast(subject) for subject in cast_subjects()]
    seconds = time.perf_counter() - start
    table = Table(title="Exhaustive casts", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("format", "direction", "who"):
        table.add_column(heading, no_wrap=True)
    table.add_column("inputs", justify="right")
    table.add_column("wrong", justify="right")
    for verdict in verdicts:
        subject = verdict.subject
        cells = (f"{verdict.num_compared:,}", str(verdict.num_wrong or ""))
        table.add_row(subject.format, subject.direction, subject.who, *cells)
        store.append("metric", _name(verdict), _metric(verdict))
    screen.print(table)
    for verdict in verdicts:
        if verdict.num_wrong:
            screen.print(f"WRONG  {_name(verdict)}: {verdict.first_wrong}", markup=False)
    screen.print(f"{num_inputs(verdicts):,} casts in {seconds:.1f} s")
    num_wrong = sum(verdict.num_wrong for verdict in verdicts)
    return ExitCode.MISMATCH if num_wrong else ExitCode.PASS


def _name(verdict: CastVerdict) -> str:
    subject = verdict.subject
    return f"parity.casts.{subject.format}.{subject.direction}.{subject.who}.num_wrong"


def _metric(verdict: CastVerdict) -> Metric:
    values = (float(verdict.num_wrong),)
    return Metric(_name(verdict), values, "1", Direction.LOWER, MetricKind.DETERMINISTIC)
