"""Spreading a sweep over a Ray cluster: one task a setting, points recorded as they arrive.

The ledger stays with the caller, so a run on a cluster resumes and reports like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from typing import Any

from harness.cli.ray_cluster import NEURON_CORES, arrivals, joined, lost_to, require_room, start
from harness.cli.session import Tell
from harness.core.engine_face import EngineSettings
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import PlannedPoint, SweepSpec

__all__ = ["demand_of", "sweep_on_ray"]


def demand_of(settings: EngineSettings) -> dict[str, Any]:
    """What a setting occupies on its node: a NeuronCore a rank, or a CPU a rank."""
    num_ranks = max(settings.cp, settings.ep)
    if settings.device == "neuron":
        return {"num_cpus": 1, "resources": {NEURON_CORES: num_ranks}}
    return {"num_cpus": num_ranks}


def sweep_on_ray(
    spec: SweepSpec,
    planned: Sequence[PlannedPoint],
    finished: Sequence[str],
    tell: Tell,
    *,
    address: str = "auto",
    told_node: Callable[[SweepPoint, str], None] = lambda *_: None,
) -> Generator[SweepPoint, None, None]:
    """Measure every setting on some node that has room for it; points come as they are complete.

    Args:
        address: of a running cluster, "auto" finds the one of this host.
        told_node: called with each point and the id of the node it was measured on.

    Raises:
        MissingEvidenceError: ray is not installed, or there is no cluster.
        UsageError: no node could ever hold a setting.
    """
    waiting = [point for point in planned if point.key not in set(finished)]
    groups = [(key, list(group)) for key, group in groupby(waiting, key=lambda one: one.settings)]
    with joined(address) as ray:
        for settings, _ in groups:
            require_room(ray, settings.label, demand_of(settings))
        streams = {
            start(ray, _measure, demand_of(settings), spec, points): number
            for number, (settings, points) in enumerate(groups)
        }
        left = [list(points) for _, points in groups]
        yield from _collected(ray, streams, left, tell, told_node)


def _measure(spec: SweepSpec, points: list[PlannedPoint]) -> Iterator[tuple[SweepPoint, str]]:
    """Runs on a node."""
    import ray

    from harness.cli.engine_factory import open_engine
    from harness.run.sweep import run_sweep

    node = ray.get_runtime_context().get_node_id()
    if all(point.pruned for point in points):
        for cell in points:
            yield SweepPoint(cell.key, cell.config, PointStatus.PRUNED, cell.pruned), node
        return
    for point in run_sweep(spec, points, open_engine):
        yield point, node


def _collected(
    ray: Any,
    streams: dict[Any, int],
    left: list[list[PlannedPoint]],
    tell: Tell,
    told_node: Callable[[SweepPoint, str], None],
) -> Iterator[SweepPoint]:
    total = sum(map(len, left))
    num_done = 0
    for number, value in arrivals(ray, streams):
        reason = lost_to(ray, value)
        if reason is not None:
            for lost in left[number]:
                yield SweepPoint(lost.key, lost.config, PointStatus.CRASHED, reason)
            continue
        point, node = value
        left[number] = [other for other in left[number] if other.key != point.key]
        num_done += 1
        tell(f"{point.config['numerics']} on node {node[:8]}", num_done, total)
        told_node(point, node)
        yield point
