"""`neuron-harness tokens --mutation`: the table of injected faults, on a terminal and in a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.cli.checkpoint_place import checkpoint_directory
from harness.cli.session import console, progress_bar, recording
from harness.cli.stage import run_stage
from harness.core.errors import ExitCode
from harness.core.metric import Direction, Metric, MetricKind
from harness.run.store import RunStore
from harness.run.token_mutation import FaultVerdict, found_share, judge_faults

__all__ = ["print_faults", "record_faults", "run_mutation"]

_VARIANT = "tiny-A"
_HEADINGS = ("fault", "found as", "ids", "logit error", "")


def run_mutation(checkpoint: Path | None, out: Path, run: Path | None) -> ExitCode:
    """Judge every fault; MISMATCH where one is not found as it should be.

    Raises:
        VacuousError: an engine without a fault does not match.
    """
    screen = console()
    with recording(out, run) as store:
        directory = checkpoint_directory(_VARIANT, checkpoint)
        code = run_stage(store, screen, "mutation", lambda: _judge(store, screen, directory))
        screen.print(f"records: {store.directory}")
    return code


def _judge(store: RunStore, screen: Console, checkpoint: Path) -> ExitCode:
    from harness.cli.fault_cases import fault_cases, open_sound

    cases = fault_cases()
    verdicts = []
    with progress_bar(screen) as tell:
        for verdict in judge_faults(cases, open_sound, str(checkpoint)):
            verdicts.append(verdict)
            tell(verdict.case.name, len(verdicts), len(cases))
    print_faults(screen, verdicts)
    return record_faults(store, verdicts)


def print_faults(screen: Console, verdicts: Sequence[FaultVerdict]) -> None:
    """A row a fault (share of ids it changed, largest logit error), and what was missed."""
    table = Table(title="Engine faults", title_justify="left", box=SIMPLE_HEAD)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for verdict in verdicts:
        table.add_row(*_cells(verdict))
    screen.print(table)
    for verdict in verdicts:
        if not verdict.is_right:
            screen.print(
                f"MISSED  {verdict.case.name}: {verdict.case.expected} was due; "
                f"{verdict.match.message}",
                markup=False,
            )
    faults = [verdict for verdict in verdicts if not verdict.case.is_control]
    found = sum(verdict.is_right for verdict in faults)
    screen.print(f"{found} of {len(faults)} faults found with status, phase and first position")


def record_faults(store: RunStore, verdicts: Sequence[FaultVerdict]) -> ExitCode:
    """Write the share found, and the share that changed an id; PASS where all were found.

    Raises:
        VacuousError: a control did not match, or there was no fault.
    """
    share = found_share(verdicts)
    compared = [
        verdict.changed_id_share
        for verdict in verdicts
        if not verdict.case.is_control and verdict.changed_id_share is not None
    ]
    shares = {"found_share": share}
    if compared:
        shares["id_changing_share"] = sum(one > 0 for one in compared) / len(compared)
    for name, value in shares.items():
        metric = f"tokens.mutation.{name}"
        store.append(
            "metric",
            metric,
            Metric(metric, (value,), "1", Direction.HIGHER, MetricKind.DETERMINISTIC),
        )
    return ExitCode.PASS if share == 1.0 else ExitCode.MISMATCH


def _cells(verdict: FaultVerdict) -> list[str]:
    changed, error = verdict.changed_id_share, verdict.match.max_logit_error
    return [
        verdict.case.name,
        str(verdict.found),
        "-" if changed is None else f"{changed:.0%}",
        "-" if error is None else f"{error:.2g}",
        "" if verdict.is_right else "MISSED",
    ]
