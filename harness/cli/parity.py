"""`neuron-harness parity`: every kernel case against its golden, with statuses and a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli import kernel_backend
from harness.cli.parity_arguments import require_executor, require_parity_arguments
from harness.cli.parity_selection import (
    KERNELS,
    ParityOptions,
    Selection,
    judge_here,
    judge_on_cluster,
    num_cores,
    targets_for,
)
from harness.cli.session import DEFAULT_OUT, console, progress_bar, recording
from harness.core.case import Case, Tolerance
from harness.core.errors import ExitCode, UsageError
from harness.core.ops import OP_SHEET
from harness.core.status import worst_exit_code
from harness.core.suggest import near_names

if TYPE_CHECKING:
    from harness.core.results import ParityResult
    from harness.run.store import RunStore

__all__ = [
    "KERNELS",
    "PRESETS",
    "Selection",
    "check_parity",
    "judge_selection",
    "register",
    "select_cases",
    "targets_for",
]

# Preset -> its ops and tier. What a preset promises is written down here and not read off the
# kernels that exist: a lost kernel must fail, not shrink the run.
PRESETS: dict[str, tuple[tuple[str, ...], str]] = {
    "tiny": (
        (
            "rms_norm",
            "swiglu",
            "linear_fp8",
            "linear_fp4_grouped",
            "sparse_attention",
            "index_scores",
            "vocab_argmax",
        ),
        "smoke",
    ),
    "all": (tuple(OP_SHEET), "default"),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("parity")(parity)


def parity(
    suite: Annotated[
        list[str] | None, typer.Option(help="A suite's TOML file; repeatable.")
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="An op; repeatable.")] = None,
    preset: Annotated[str, typer.Option(help="Ops and tier by name.")] = "tiny",
    tier: Annotated[
        str, typer.Option(help="smoke, default, full or device; default: the preset's.")
    ] = "",
    smoke: Annotated[bool, typer.Option("--smoke", help="Short for --tier smoke.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Short for --tier full.")] = False,
    backend: Annotated[str, typer.Option(help="interpret, simulate or device.")] = "interpret",
    jobs: Annotated[
        int, typer.Option(help="Worker processes; 0: one a core, or a NeuronCore.")
    ] = 0,
    lnc: Annotated[int, typer.Option(help="Cores a launch: 1, 2, or 0 for the backend's own.")] = 0,
    repeat: Annotated[int, typer.Option(help="Calls that must give equal bytes.")] = 1,
    kernels: Annotated[str, typer.Option(help="Target text of the table under test.")] = KERNELS,
    time_limit_s: Annotated[float, typer.Option(help="Of one case.")] = 120.0,
    memory_limit_gib: Annotated[
        float, typer.Option(help="Of one case, beyond what a worker holds when ready.")
    ] = 6.0,
    replay: Annotated[Path | None, typer.Option(help="A bundle, or a directory of them.")] = None,
    mutation: Annotated[str, typer.Option(help="'auto': judge mutants of the kernels.")] = "",
    count: Annotated[int, typer.Option(help="Mutants to draw.")] = 200,
    clean_runs: Annotated[int, typer.Option(help="Seeded runs that must raise no alarm.")] = 0,
    casts: Annotated[bool, typer.Option("--casts", help="Every cast, exhaustively.")] = False,
    seed: Annotated[int, typer.Option(help="Of that draw.")] = 0,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML here.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
    executor: Annotated[str, typer.Option(help="local, or ray: cases on a cluster.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Of the cluster.")] = "auto",
) -> None:
    """Compare kernels with their references, case by case."""
    options = ParityOptions(
        backend, jobs, repeat, kernels, time_limit_s, memory_limit_gib, lnc=lnc,
        ray_address=ray_address if executor == "ray" else "",
    )  # fmt: skip
    require_executor(executor, judges_cases=not (mutation or replay or casts))
    require_parity_arguments(options, mutation, count, clean_runs, junit)
    screen = console()
    if replay is not None:
        raise typer.Exit(_replay(replay, options, screen))
    if casts:
        raise typer.Exit(_casts(out, backend, screen))
    selection = select_cases(suite or [], op or [], preset, _tier(tier, smoke, full)).on_cores(lnc)
    with recording(out, None, backend=backend) as store:
        if mutation:
            code = judge_mutants(store, screen, selection, options, count, seed)
        elif clean_runs:
            code = judge_clean_runs(store, screen, selection, options, clean_runs, seed)
        else:
            code = judge_selection(store, screen, selection, options)
        screen.print(f"run: {store.directory}")
        if junit is not None:
            _write_junit(store, junit)
    raise typer.Exit(code)


def _tier(tier: str, smoke: bool, full: bool) -> str:
    """One of the three ways to name a tier; "" leaves it to the preset."""
    asked = [name for name in (tier, "smoke" * smoke, "full" * full) if name]
    if len(asked) > 1:
        raise UsageError(f"--tier, --smoke and --full name one tier; given: {', '.join(asked)}")
    return "".join(asked)


def _casts(out: Path, backend: str, screen: Console) -> ExitCode:
    from harness.cli.cast_table import judge_casts

    kernel_backend.select_backend(backend)
    with recording(out, None, backend=backend) as store:
        code = judge_casts(store, screen)
        screen.print(f"run: {store.directory}")
    return code


def judge_mutants(
    store: RunStore,
    screen: Console,
    selection: Selection,
    options: ParityOptions,
    count: int,
    seed: int,
) -> ExitCode:
    """Mutants of the kernels, on the bundled interpreter; fewer than 95 % caught is a failure."""
    from harness.cli.kernel_mutation import TARGET
    from harness.cli.mutation_table import print_mutants, record_share
    from harness.run.mutation import MutantVerdict, run_mutants

    if options.backend != "interpret":
        raise UsageError("--mutation auto changes instructions: it needs --backend interpret")
    num_judged = 0
    with progress_bar(screen) as tell:

        def on_verdict(verdict: MutantVerdict, total: int) -> None:
            nonlocal num_judged
            num_judged += 1
            tell(f"mutants of {verdict.mutant.op}", num_judged, total)

        verdicts = run_mutants(
            selection.cases,
            selection.tolerances,
            targets_for(options.kernels, options.lnc),
            TARGET,
            count=count,
            seed=seed,
            jobs=options.jobs or num_cores(),
            limits=options.limits,
            on_verdict=on_verdict,
        )
    print_mutants(screen, verdicts, seed)
    return record_share(store, verdicts)


def judge_clean_runs(
    store: RunStore,
    screen: Console,
    selection: Selection,
    options: ParityOptions,
    num_runs: int,
    seed: int,
) -> ExitCode:
    """Seeded runs of the kernels as they are: a case that does not pass is a false alarm."""
    from harness.core.metric import Direction, Metric, MetricKind
    from harness.run.clean_runs import clean_cases, false_alarms

    cases = tuple(clean_cases(selection.cases, num_runs, seed))
    results = _judged(store, screen, Selection(cases, selection.tolerances), options)
    num_cases, num_alarmed = false_alarms(cases, results)
    screen.print(
        f"{num_runs} clean runs from seed {seed}: {len(cases):,} cases, {num_cases} false alarms "
        f"in {num_alarmed} runs"
    )
    name = "parity.clean_runs.false_alarms"
    values = (float(num_cases),)
    store.append(
        "metric", name, Metric(name, values, "1", Direction.LOWER, MetricKind.DETERMINISTIC)
    )
    return worst_exit_code(result.status.exit_code for result in results)


def check_parity(store: RunStore, screen: Console, preset: str, backend: str) -> ExitCode:
    """The parity stage of `run`: a preset's cases on one backend."""
    return judge_selection(store, screen, select_cases([], [], preset, ""), ParityOptions(backend))


def select_cases(suites: Sequence[str], ops: Sequence[str], preset: str, tier: str) -> Selection:
    """Cases of the given suites and ops, else of the preset.

    Raises:
        UsageError: unknown preset, op or tier.
        InputError: a suite's file is wrong.
        VacuousError: a suite has no case in this tier.
    """
    from suites.loader import load_op_suite

    if preset not in PRESETS:
        raise UsageError(f"preset {preset!r} is not known{near_names(preset, PRESETS)}")
    preset_ops, preset_tier = PRESETS[preset]
    if not suites and not ops:
        ops = preset_ops
        tier = tier or preset_tier
    cases: dict[str, Case] = {}
    tolerances: dict[str, dict[str, Tolerance]] = {}
    for name in (*suites, *ops):
        loaded = load_op_suite(name)
        chosen = loaded.cases_of(tier or "default")
        if name in ops:
            chosen = tuple(case for case in chosen if case.op == name) or chosen
        cases |= {case.case_id: case for case in chosen}
        tolerances |= {known: dict(budgets) for known, budgets in loaded.tolerances.items()}
    return Selection(tuple(cases.values()), tolerances)


def judge_selection(
    store: RunStore, screen: Console, selection: Selection, options: ParityOptions
) -> ExitCode:
    """Judge, record each result as it comes, print the table; the worst status decides."""
    results = _judged(store, screen, selection, options)
    return worst_exit_code(result.status.exit_code for result in results)


def _judged(
    store: RunStore, screen: Console, selection: Selection, options: ParityOptions
) -> list[ParityResult]:
    """Every result, recorded as it came, after the table."""
    from harness.cli.parity_table import print_parity

    cases = selection.cases
    finished: list[ParityResult] = []
    store.plan("parity", [case.case_id for case in cases])
    with progress_bar(screen) as tell:

        def on_result(result: ParityResult) -> None:
            store.append("parity", result.case_id, result)
            finished.append(result)
            tell(f"parity {result.op}", len(finished), len(cases))

        judge = judge_on_cluster if options.ray_address else judge_here
        results = judge(selection, options, store.directory / "bundles", on_result, screen)
    print_parity(screen, results)
    return results


def _replay(directory: Path, options: ParityOptions, screen: Console) -> ExitCode:
    """Judge stored cases again, on their stored tensors, in this process: one bundle, or every
    bundle below a directory."""
    from harness.cli.parity_table import print_parity
    from harness.run.bundle import bundles_below, read_bundle

    results = []
    for place in bundles_below(directory):
        bundle = read_bundle(place)
        judge = targets_for(options.kernels, options.lnc).judge(
            {bundle.case.op: bundle.tolerances}, backend=options.backend, repeat=options.repeat
        )
        results.append(judge.run(bundle.case, bundle.arguments))
    print_parity(screen, results)
    for result in results:
        if result.detail:
            screen.print(result.detail, markup=False)
    return worst_exit_code(result.status.exit_code for result in results)


def _write_junit(store: RunStore, path: Path) -> None:
    from reports.junit import to_junit
    from reports.ledger import read_run

    try:
        path.write_text(to_junit(read_run(store.directory)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); see --junit") from error
