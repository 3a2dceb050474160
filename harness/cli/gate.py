"""`neuron-harness gate`: did anything get worse?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli.gate_outputs import write_gate_outputs
from harness.cli.record_metrics import record_metrics
from harness.cli.session import console
from harness.cli.stage import run_stage
from harness.core.errors import ExitCode, MissingEvidenceError, UsageError
from harness.core.gate_spec import GateSpec
from harness.core.metric import GateVerdict
from harness.core.status import GateStatus

if TYPE_CHECKING:
    from harness.run.gate_sides import GateRun
    from harness.run.store import RunStore

__all__ = ["judge_run", "print_verdicts", "register", "shipped_baseline"]

SELFTEST = "selftest"
_SHOWN = (GateStatus.REGRESSED, GateStatus.MISSING, GateStatus.INVALID, GateStatus.INCOMPARABLE)
_MAX_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gate")(gate)


def gate(
    candidate: Annotated[
        str, typer.Argument(metavar="RUN", help=f"A run, a directory of runs, or `{SELFTEST}`.")
    ],
    baseline: Annotated[
        Path | None, typer.Option(help="A run or a directory of runs; default: the shipped one.")
    ] = None,
    spec: Annotated[str, typer.Option(help="Name or file of a gate.")] = "tiny",
    history: Annotated[
        Path | None, typer.Option(help="A/A runs of one unchanged build, for the spread.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write gate.json, junit.xml and summary.md into this new directory."),
    ] = None,
    write_baseline: Annotated[
        Path | None, typer.Option(help="Write RUN's deterministic metrics there instead.")
    ] = None,
) -> None:
    """Compare a run's metrics with a baseline's; counts exactly, timings by statistics."""
    screen = console()
    if candidate == SELFTEST:
        raise typer.Exit(_selftest(screen))
    if not Path(candidate).is_dir():
        raise UsageError(f"{candidate}: there is no such run; name a run, or a directory of runs")
    if write_baseline is not None:
        raise typer.Exit(_write_baseline(screen, Path(candidate), write_baseline))
    from harness.run.gate_sides import read_side
    from suites.loader import load_gate_suite

    chosen = load_gate_suite(spec)
    theirs = Path(candidate)
    past = read_side(history) if history is not None else ()
    ours = baseline or shipped_baseline(spec)
    if (theirs / "run.json").exists():
        with _opened(theirs) as store:
            record_metrics(store)
            code = run_stage(
                store, screen, "gate", lambda: judge_run(store, screen, chosen, ours, past, out)
            )
    else:
        verdicts, code = _judge_sides(screen, chosen, read_side(ours), read_side(theirs), past)
        if out is not None:
            write_gate_outputs(screen, out, verdicts)
    raise typer.Exit(code)


def shipped_baseline(preset: str) -> Path:
    """The baseline of deterministic metrics that ships with the repository.

    Raises:
        MissingEvidenceError: there is none of this name.
    """
    import suites

    path = Path(suites.__file__).parent / "baselines" / Path(preset).stem
    if not path.is_dir():
        raise MissingEvidenceError(
            f"no baseline ships for {preset!r}; name one with --baseline, or make one with "
            "`neuron-harness gate RUN --write-baseline DIR`"
        )
    return path


def judge_run(
    store: RunStore,
    screen: Console,
    spec: GateSpec,
    baseline: Path,
    history: Sequence[GateRun] = (),
    out: Path | None = None,
) -> ExitCode:
    """Judge one run against a baseline; every verdict is recorded in the run, and below `out`."""
    from harness.run.gate_sides import read_side

    sides = read_side(baseline), read_side(store.directory)
    verdicts, code = _judge_sides(screen, spec, *sides, history)
    store.append_all("gate", {verdict.metric: verdict for verdict in verdicts})
    if out is not None:
        write_gate_outputs(screen, out, verdicts)
    return code


def _judge_sides(
    screen: Console,
    spec: GateSpec,
    base: Sequence[GateRun],
    candidate: Sequence[GateRun],
    history: Sequence[GateRun],
) -> tuple[tuple[GateVerdict, ...], ExitCode]:
    from harness.run.gates import gate_exit_code, judge

    verdicts = judge(spec, base, candidate, history)
    print_verdicts(screen, verdicts)
    return verdicts, gate_exit_code(verdicts)


def print_verdicts(screen: Console, verdicts: Sequence[GateVerdict]) -> None:
    """Counts by status, and what went wrong."""
    for title, advisory in (("gated", False), ("advisory", True)):
        counts = Counter(one.status.value for one in verdicts if one.advisory is advisory)
        if counts:
            found = ", ".join(f"{count} {status}" for status, count in counts.most_common())
            screen.print(f"  {title}: {found}", markup=False)
    worth_showing = [one for one in verdicts if one.status in _SHOWN and not one.advisory]
    for verdict in worth_showing[:_MAX_SHOWN]:
        screen.print(
            f"  {verdict.status.value:<12} {verdict.metric}: {verdict.message}", markup=False
        )
    if len(worth_showing) > _MAX_SHOWN:
        screen.print(f"  and {len(worth_showing) - _MAX_SHOWN} more in gate.jsonl")


def _opened(directory: Path) -> RunStore:
    """The run to judge, with the environment it recorded itself."""
    from harness.run.store import open_run, read_run

    return open_run(directory, environment=read_run(directory).get("environment") or {})


def _selftest(screen: Console) -> ExitCode:
    from harness.run.gate_selftest import SelftestPlan, selftest

    plan = SelftestPlan()
    result = selftest(plan)
    screen.print(
        f"{plan.num_reports} simulated A/A reports and as many with {plan.regression:+.0%} in one "
        f"of {plan.num_metrics} primary metrics; noise {plan.noise:.0%}, {plan.num_pairs} pairs, "
        f"{plan.num_history} A/A runs, seed {plan.seed}\n"
        f"false alarms {result.false_alarm_rate:.2%} (at most 1 %)\n"
        f"detected     {result.detection_rate:.2%} (at least 95 %)\n"
        f"misplaced    {result.misplaced_rate:.2%}",
        markup=False,
    )
    return ExitCode.PASS if result.passed else ExitCode.VACUOUS


def _write_baseline(screen: Console, run: Path, target: Path) -> ExitCode:
    from harness.run.baseline import write_baseline

    with _opened(run) as store:
        if not record_metrics(store):
            raise UsageError(f"{run}: this run has no record to take metrics from")
    num_metrics = write_baseline(run, target)
    screen.print(f"{num_metrics} deterministic metrics of {run} are now the baseline {target}")
    return ExitCode.PASS
