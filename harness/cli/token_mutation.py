"""`neuron-harness tokens --mutation`: the table of injected faults, on a terminal and in a run."""

from __future__ import annotations

from collections import Counter
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
from harness.run.token_mutation import FaultCase, FaultVerdict, found_share, judge_faults

__all__ = ["print_classes", "print_faults", "record_faults", "run_mutation"]

_VARIANT = "tiny-A"
_HEADINGS = ("fault", "found as", "ids", "logit error", "")
_CLASS_HEADINGS = ("fault", "class", "found as", "ids changed", "")


def run_mutation(checkpoint: Path | None, out: Path, run: Path | None, suite: str = "") -> ExitCode:
    """Judge every fault; MISMATCH where one is not found as it should be.

    Args:
        suite: "recall" takes the faults to tiny-T and its classes of prompts.

    Raises:
        VacuousError: an engine without a fault does not match.
    """
    screen = console()
    with recording(out, run) as store:
        cases, variant = _cases_of(suite)
        directory = checkpoint_directory(variant, checkpoint)
        code = run_stage(store, screen, "mutation", lambda: _judge(store, screen, directory, cases))
        screen.print(f"records: {store.directory}")
    return code


def _cases_of(suite: str) -> tuple[Sequence[FaultCase], str]:
    """The cases and the tiny checkpoint they were written for."""
    from harness.cli.fault_cases import fault_cases
    from harness.cli.recall_faults import RECALL_SUITE, recall_cases
    from suites.loader import load_token_suite

    if suite == RECALL_SUITE:
        return recall_cases(), load_token_suite(suite).checkpoint_variant
    return fault_cases(), _VARIANT


def _judge(
    store: RunStore, screen: Console, checkpoint: Path, cases: Sequence[FaultCase]
) -> ExitCode:
    from harness.cli.fault_cases import open_sound

    verdicts = []
    with progress_bar(screen) as tell:
        for verdict in judge_faults(cases, open_sound, str(checkpoint)):
            verdicts.append(verdict)
            tell(verdict.case.name, len(verdicts), len(cases))
    print_faults(screen, verdicts)
    if len({verdict.case.name for verdict in verdicts}) < len(verdicts):
        print_classes(screen, verdicts)
    return record_faults(store, verdicts)


def print_classes(screen: Console, verdicts: Sequence[FaultVerdict]) -> None:
    """A row a fault: what it did to all prompts of its class."""
    from harness.cli.recall_faults import MIN_CHANGED_SHARE, class_shares

    shares = class_shares(verdicts)
    table = Table(title="Recall classes", title_justify="left", box=SIMPLE_HEAD)
    for heading in _CLASS_HEADINGS:
        table.add_column(heading, overflow="fold")
    for one in shares:
        changed = "-" if one.changed is None else f"{one.changed:.0%}"
        mark = "" if one.is_visible else "QUIET"
        table.add_row(one.fault, one.stem, one.status.value, changed, mark)
    screen.print(table)
    loud = sum(one.is_visible for one in shares)
    screen.print(
        f"{loud} of {len(shares)} faults end the run or change {MIN_CHANGED_SHARE:.0%} of their "
        "class's tokens"
    )


def print_faults(screen: Console, verdicts: Sequence[FaultVerdict]) -> None:
    """A row a fault (share of ids it changed, largest logit error), and what was missed."""
    table = Table(title="Engine faults", title_justify="left", box=SIMPLE_HEAD)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    repeats = Counter(verdict.case.name for verdict in verdicts)
    for verdict in verdicts:
        table.add_row(_shown_name(verdict, repeats), *_cells(verdict))
    screen.print(table)
    for verdict in verdicts:
        if not verdict.is_right:
            screen.print(
                f"MISSED  {_shown_name(verdict, repeats)}: {verdict.case.expected} was due; "
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


def _shown_name(verdict: FaultVerdict, repeats: Counter[str]) -> str:
    """The fault, with its prompt where there are several."""
    case = verdict.case
    return case.name if repeats[case.name] == 1 else f"{case.name}, {case.prompt.name}"


def _cells(verdict: FaultVerdict) -> list[str]:
    changed, error = verdict.changed_id_share, verdict.match.max_logit_error
    return [
        str(verdict.found),
        "-" if changed is None else f"{changed:.0%}",
        "-" if error is None else f"{error:.2g}",
        "" if verdict.is_right else "MISSED",
    ]
