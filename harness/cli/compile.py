"""`neuron-harness compile`: the graphs a matrix needs, compiled before it is measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.engine_options import CompileBackend
from harness.cli.session import DEFAULT_OUT, command_line, console, parse_ints
from harness.core.errors import ExitCode

if TYPE_CHECKING:
    from harness.core.op_call import OpCall
    from harness.core.sweep_spec import SweepSpec
    from harness.run.store import RunStore

__all__ = ["register"]

_RUN_ID = "compile"
_KERNELS = "kernels.op_table:TABLE"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compile")(compile_matrix)


def compile_matrix(
    matrix: Annotated[str, typer.Option(help="Name or file of a sweep.")],
    checkpoint: Annotated[Path, typer.Option(help="With --regions whole, else its config.json.")],
    cp: Annotated[str, typer.Option(help="Instead of the sweep's, e.g. 64.")] = "",
    backend: Annotated[str, typer.Option(help="device, simulate or interpret.")] = "device",
    jobs: Annotated[int, typer.Option(help="Compiles at one time.")] = 8,
    lnc: Annotated[int, typer.Option(help="Kernels' degree; 0: the environment's.")] = 0,
    time_limit_s: Annotated[float, typer.Option(help="Of one graph.")] = 1800.0,
    list_only: Annotated[bool, typer.Option("--list", help="Print the graphs and stop.")] = False,
    regions: Annotated[
        bool, typer.Option("--regions", help="Layers' regions on the CPU instead of kernels.")
    ] = False,
    compile_backend: CompileBackend = "",
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
) -> None:
    """List the graphs of a matrix, compile those that are not, name what fails."""
    from dataclasses import replace

    from suites.loader import load_sweep_suite

    spec = load_sweep_suite(matrix)
    if cp:
        spec = replace(spec, cps=parse_ints(cp, "--cp"))
    screen = console()
    if regions:
        _compile_regions(spec, checkpoint, compile_backend)
        raise typer.Exit(ExitCode.PASS)
    calls, unknown = _calls(spec, checkpoint)
    if list_only:
        for call in calls:
            screen.print(call.label, markup=False)
        screen.print(f"{len(calls)} graphs")
    if unknown:
        screen.print(_of_unknown(unknown), markup=False)
    if list_only:
        raise typer.Exit(ExitCode.PASS)
    with _store(out, backend) as store:
        code = _compile(store, calls, backend, jobs, lnc, time_limit_s)
    raise typer.Exit(code)


def _compile_regions(spec: SweepSpec, checkpoint: Path, compile_backend: str) -> None:
    from harness.cli.compile_regions import compile_regions

    for one in compile_regions(spec, checkpoint, compile_backend):
        console().print(
            f"{one.label}: {one.num_graphs} region graphs, {one.num_compiled} compiled now",
            markup=False,
        )


def _calls(spec: SweepSpec, checkpoint: Path) -> tuple[tuple[OpCall, ...], tuple[OpCall, ...]]:
    """Distinct kernel calls of all engines of the matrix: known ones, and those nobody can know."""
    from engine.config.limits import resolve_limits
    from engine.config.parse import load_model_config
    from engine.shapes.calls import step_calls
    from engine.worker import resolve_numerics
    from harness.core.op_table import resolve_op_table
    from harness.core.registry import resolve_target

    kernels = resolve_target(_KERNELS).ops
    config = load_model_config(checkpoint)
    found: dict[OpCall, None] = {}
    unknown: dict[OpCall, None] = {}
    for settings in spec.settings(str(checkpoint)):
        resolve_op_table(settings.ops)
        calls = step_calls(
            config,
            resolve_limits(settings, config),
            resolve_numerics(settings),
            settings.cp,
            ep=settings.ep,
            moe_capacity=settings.moe_capacity,
            num_sequences=max(spec.all_concurrencies),
        )
        found.update(dict.fromkeys(call for call in calls.known if call.op in kernels))
        unknown.update(dict.fromkeys(call for call in calls.unknown if call.op in kernels))
    return tuple(found), tuple(unknown)


def _of_unknown(unknown: tuple[OpCall, ...]) -> str:
    ops = ", ".join(sorted({call.op for call in unknown}))
    return (
        f"not listed: {len(unknown)} calls of prompt steps ({ops}) whose rows depend on the "
        "prompt; with moe_capacity in the matrix they have one shape. A sweep counts each graph "
        "that it had to compile itself"
    )


def _compile(
    store: RunStore,
    calls: tuple[OpCall, ...],
    backend: str,
    jobs: int,
    lnc: int,
    time_limit_s: float,
) -> ExitCode:
    from harness.cli.kernel_backend import SELECT
    from harness.core.numerics import FAST, Numerics
    from harness.run.compile_cache import compile_caches, compiler_versions
    from harness.run.compile_plan import compile_calls, estimate, worker

    screen, versions = console(), compiler_versions()
    earlier = [record.payload for record in store.read("compile").records]
    done = {
        str(record["label"])
        for record in earlier
        if record["status"] == "OK"
        and (record["backend"], record["versions"], record["lnc"]) == (backend, versions, lnc)
    }
    waiting = [call for call in calls if call.label not in done]
    screen.print(f"{len(calls)} graphs, {len(calls) - len(waiting)} compiled before")
    if waiting:
        screen.print(str(estimate(waiting, earlier, jobs)))
    grid = Numerics(FAST.name, FAST.activation, FAST.accumulate, FAST.quantise, fp8_max=240)
    setup = partial(worker, _KERNELS, SELECT, backend, grid, lnc)
    failed = 0
    for call, result in compile_calls(
        waiting, setup, jobs=jobs, time_limit_s=time_limit_s, backend=backend, versions=versions
    ):
        from harness.core.record import to_plain

        store.append("compile", f"{call.key}/{backend}/{lnc}", {**to_plain(result), "lnc": lnc})
        if result.status != "OK":
            failed += 1
            first = result.message.partition("\n")[0]
            screen.print(f"FAILED {call.label}: {first}", markup=False)
    if failed:
        screen.print(f"{failed} of {len(waiting)} graphs failed; they are in {store.directory}")
        return ExitCode.MISMATCH
    if backend == "device":
        for cache in compile_caches():
            if cache.is_local:
                cache.stamp()
    screen.print(f"all {len(calls)} graphs are compiled ({backend})")
    return ExitCode.PASS


def _store(out: Path, backend: str) -> RunStore:
    from harness.run.environment import fingerprint
    from harness.run.store import new_run, open_run

    environment = fingerprint(backend=backend)
    if (out / _RUN_ID / "run.json").is_file():
        return open_run(out / _RUN_ID, environment=environment)
    return new_run(out, command=command_line(), environment=environment, run_id=_RUN_ID)
