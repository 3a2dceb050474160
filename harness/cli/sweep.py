"""`neuron-harness sweep`: TTFT and TPOT over input lengths and cp."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from harness.cli.engine_options import MoeCapacity
from harness.cli.record_metrics import record_metrics
from harness.cli.session import DEFAULT_OUT, Tell, console, parse_ints, progress_bar, recording
from harness.cli.stage import run_stage
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode, UsageError
from harness.core.latency import LatencyStats, measure_requests
from harness.core.results import PointStatus, SweepPoint
from harness.core.status import worst_exit_code
from harness.core.sweep_spec import PlannedPoint, SweepSpec

if TYPE_CHECKING:
    from harness.run.store import RunStore

__all__ = ["measure_sweep", "plan_points", "record_points", "register"]

_EXIT = {
    PointStatus.OK: ExitCode.PASS,
    PointStatus.PRUNED: ExitCode.PASS,
    PointStatus.FAILED: ExitCode.MISMATCH,
    PointStatus.CRASHED: ExitCode.RANK,
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def sweep(
    spec: Annotated[str, typer.Option(help="Name or file of a sweep.")] = "tiny",
    checkpoint: Annotated[Path | None, typer.Option(help="Default: tiny-A.")] = None,
    input_len: Annotated[str, typer.Option(help="Instead of the sweep's, e.g. 512,1024.")] = "",
    output_len: Annotated[int, typer.Option(help="Instead of the sweep's.")] = 0,
    cp: Annotated[str, typer.Option(help="Instead of the sweep's, e.g. 1,2,4.")] = "",
    ep: Annotated[str, typer.Option(help="Instead of the sweep's; 0: the same as cp.")] = "",
    moe_capacity: MoeCapacity = 0,
    concurrency: Annotated[int, typer.Option(help="Instead of the sweep's; one a rank, say.")] = 0,
    prefill: Annotated[
        str, typer.Option(help="Instead of the sweep's: as-decode, attention, or both by comma.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Measured requests per point.")] = 0,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
    run: Annotated[Path | None, typer.Option(help="Resume this run.")] = None,
    online: Annotated[bool, typer.Option("--online", help="Through a server per setting.")] = False,
    attach: Annotated[str, typer.Option(help="URL of a server that already runs.")] = "",
    model: Annotated[str, typer.Option(help="Of the attached server; default: its first.")] = "",
    executor: Annotated[str, typer.Option(help="local, or ray: settings on a cluster.")] = "local",
    ray_address: Annotated[str, typer.Option(help="Of the cluster.")] = "auto",
) -> None:
    """Measure TTFT and TPOT; finished points stay, whatever ends the sweep."""
    from harness.cli.checkpoint_place import checkpoint_directory
    from suites.loader import load_sweep_suite

    changes: dict[str, Any] = {}
    axes = {"input_lens": ("--input-len", input_len), "cps": ("--cp", cp), "eps": ("--ep", ep)}
    for axis, (option, text) in axes.items():
        if text:
            changes[axis] = parse_ints(text, option)
    if concurrency:
        changes |= {"concurrency": concurrency, "concurrencies": ()}
    if prefill:
        changes["prefills"] = tuple(prefill.split(","))
    if output_len:
        changes |= {"output_len": output_len, "output_lens": ()}
    if repeats:
        changes["num_repeats"] = repeats
    chosen = load_sweep_suite(spec)
    if concurrency > chosen.num_warmups:
        changes["num_warmups"] = concurrency
    if moe_capacity:
        changes["engine"] = {**chosen.engine, "moe_capacity": moe_capacity}
    chosen = replace(chosen, **changes)
    screen = console()
    backend = "device" if chosen.engine.get("device") == "neuron" else "interpret"
    with recording(out, run, backend=backend) as store:
        if attach:
            from harness.cli.online_sweep import measure_attached

            measure = partial(measure_attached, store, screen, chosen, attach, model)
        else:
            directory = checkpoint_directory("tiny-A", checkpoint)
            ours = _measure_of_ours(online, executor, ray_address)
            measure = partial(ours, store, screen, chosen, directory)
        code = run_stage(store, screen, "sweep", measure)
        record_metrics(store)
        screen.print(f"records: {store.directory}")
    raise typer.Exit(code)


def _measure_of_ours(online: bool, executor: str, ray_address: str) -> Callable[..., ExitCode]:
    """Who measures a checkpoint of ours."""
    if executor not in ("local", "ray") or (online and executor == "ray"):
        raise UsageError(f"--executor {executor!r}: local, or ray for an offline sweep")
    if executor == "ray":
        return partial(_measure_on_ray, ray_address)
    if online:
        from harness.cli.online_sweep import measure_served

        return measure_served
    return measure_sweep


def _measure_on_ray(
    address: str, store: RunStore, screen: Console, spec: SweepSpec, checkpoint: Path
) -> ExitCode:
    from harness.cli.ray_executor import sweep_on_ray

    planned = plan_points(spec, checkpoint.resolve())

    def told_node(_: SweepPoint, node: str) -> None:
        screen.print(f"  node {node[:8]}:", end="", markup=False)

    return record_points(
        store,
        screen,
        planned,
        lambda finished, tell: sweep_on_ray(
            spec, planned, finished, tell, address=address, told_node=told_node
        ),
    )


def measure_sweep(store: RunStore, screen: Console, spec: SweepSpec, checkpoint: Path) -> ExitCode:
    """Measure what this run has not measured yet; one record a point, on disk when it is done."""
    from harness.cli.engine_factory import open_engine
    from harness.run.sweep import run_sweep

    planned = plan_points(spec, checkpoint)
    return record_points(
        store,
        screen,
        planned,
        lambda finished, tell: run_sweep(
            spec, planned, open_engine, finished=finished, progress=tell
        ),
    )


def plan_points(spec: SweepSpec, checkpoint: Path) -> tuple[PlannedPoint, ...]:
    """Cells of the matrix on a checkpoint, with those that cannot run marked."""
    from harness.run.checkpoint_id import checkpoint_id

    limit = _default_max_model_len(checkpoint)
    points = spec.points(str(checkpoint), checkpoint_id(checkpoint), limit)
    refusals = {one: _refusal(one) for one in dict.fromkeys(point.settings for point in points)}
    return tuple(
        replace(point, pruned=point.pruned or refusals[point.settings]) for point in points
    )


def _refusal(settings: EngineSettings) -> str:
    """Why the engine would not open with these settings; "" where it would.

    Raises:
        InputError: the checkpoint's configuration is wrong.
    """
    from engine.config.limits import resolve_limits
    from engine.config.parse import load_model_config
    from engine.parallel.topology import Topology
    from engine.weights.layout import RankLayout
    from engine.worker import resolve_numerics

    config = load_model_config(settings.checkpoint)
    try:
        resolve_limits(settings, config)
        Topology.of(settings)
        RankLayout(config, resolve_numerics(settings), 0, settings.cp)
    except UsageError as error:
        return str(error)
    return ""


def record_points(
    store: RunStore,
    screen: Console,
    planned: Sequence[PlannedPoint],
    measure: Callable[[Sequence[str], Tell], Generator[SweepPoint, None, None]],
) -> ExitCode:
    """Measure what is not in the store yet; each point is on disk before the next one runs.

    Args:
        measure: (keys already measured, progress) -> points as they are complete.
    """
    store.plan("sweep", [point.key for point in planned])
    content = store.read("sweep")
    for notice in content.notices:
        screen.print(f"  {notice}", markup=False)
    finished = [
        record.key for record in content.records if record.payload["status"] == PointStatus.OK
    ]
    kept = [point for point in planned if point.key in finished]
    if kept:
        screen.print(f"  {len(kept)} of {len(planned)} points are already measured")
    codes = [ExitCode.PASS for _ in kept]
    with progress_bar(screen) as tell, closing(measure(finished, tell)) as points:
        for point in points:
            store.append("sweep", point.key, point)
            codes.append(_EXIT[point.status])
            screen.print(f"  {_line(point)}", markup=False)
    return worst_exit_code(codes)


def _default_max_model_len(checkpoint: Path) -> int:
    """What the engine takes where the sweep leaves it open."""
    from engine.config.limits import resolve_limits
    from engine.config.parse import load_model_config

    settings = EngineSettings(str(checkpoint))
    return resolve_limits(settings, load_model_config(str(checkpoint))).max_model_len


def _line(point: SweepPoint) -> str:
    config = point.config
    name = f"{config['numerics']} cp={config['cp']} in={config['input_len']}"
    if config.get("ep") not in (0, None, config["cp"]):
        name += f" ep={config['ep']}"
    if config["concurrency"] != 1:
        name += f" concurrency={config['concurrency']}"
    if prefill := config.get("prefill"):
        name += f" prefill={prefill}"
    if rate := config.get("request_rate"):
        name += f" rate={rate:g}"
    if point.status != PointStatus.OK:
        # The record has the whole message, a rank's traceback included.
        return f"{point.status:<9} {name}: {point.message.partition(chr(10))[0]}"
    samples = measure_requests(point.requests)
    return f"{point.status:<9} {name}: " + ", ".join(
        f"{label} {_median(values)}"
        for label, values in (("TTFT", samples.ttft_ms), ("TPOT", samples.tpot_ms))
    )


def _median(values_ms: Sequence[float]) -> str:
    stats = LatencyStats.of(values_ms)
    return "null" if stats is None else f"{stats.median_ms:.1f} ms (n={stats.count})"
