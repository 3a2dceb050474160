"""Spreading a sweep over a Ray cluster: one task a setting, points recorded as they arrive.

The ledger stays with the caller, so a run on a cluster resumes and reports like any other. The
checkpoint's path and this package must be the same on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from typing import Any

from harness.cli.session import Tell
from harness.core.engine_face import EngineSettings
from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import PlannedPoint, SweepSpec

__all__ = ["NEURON_CORES", "demand_of", "sweep_on_ray"]

# A Trainium node announces its cores under this name: ray start --resources '{"neuron_cores": 64}'
NEURON_CORES = "neuron_cores"


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
    ray = _connected(address)
    waiting = [point for point in planned if point.key not in set(finished)]
    groups = [(key, list(group)) for key, group in groupby(waiting, key=lambda one: one.settings)]
    try:
        for settings, _ in groups:
            _check_room(ray, settings)
        streams = {
            ray.remote(_measure)
            .options(num_returns="streaming", max_retries=0, **demand_of(settings))
            .remote(spec, points): points
            for settings, points in groups
        }
        yield from _collected(ray, streams, tell, told_node)
    finally:
        ray.shutdown()


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
    streams: dict[Any, list[PlannedPoint]],
    tell: Tell,
    told_node: Callable[[SweepPoint, str], None],
) -> Iterator[SweepPoint]:
    total = sum(map(len, streams.values()))
    num_done = 0
    while streams:
        (stream,), _ = ray.wait(list(streams), num_returns=1, fetch_local=False)
        left = streams[stream]
        try:
            point, node = ray.get(next(stream))
        except StopIteration:
            del streams[stream]
            continue
        except (ray.exceptions.RayError, ray.exceptions.RayTaskError) as error:
            del streams[stream]
            for lost in left:
                yield SweepPoint(lost.key, lost.config, PointStatus.CRASHED, str(error))
            continue
        left[:] = [other for other in left if other.key != point.key]
        num_done += 1
        tell(f"{point.config['numerics']} on node {node[:8]}", num_done, total)
        told_node(point, node)
        yield point


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingEvidenceError(
            "--executor ray needs the extra: pip install 'neuron-harness[ray]'"
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError) as error:
        raise MissingEvidenceError(f"no Ray cluster at {address!r}: {error}") from error
    return ray


def _check_room(ray: Any, settings: EngineSettings) -> None:
    demand = demand_of(settings)
    needed = {"CPU": demand["num_cpus"], **demand.get("resources", {})}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(k, 0) >= v for k, v in needed.items()) for node in nodes):
        wanted = ", ".join(f"{count} {name}" for name, count in needed.items())
        raise UsageError(f"{settings.label}: no node of the cluster has {wanted}")
