"""A Ray cluster as sweeps and parity use it: joined for a while, tasks stream what they find.

The checkpoint's path and this package must be the same on every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from harness.core.errors import MissingEvidenceError, UsageError

__all__ = ["NEURON_CORES", "arrivals", "joined", "lost_to", "require_room", "start"]

# A Trainium node announces its cores under this name, which Ray knows: each task then sees the
# cores it was given. ray start --resources '{"neuron_cores": 64}'
NEURON_CORES = "neuron_cores"

Name = TypeVar("Name")


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """The `ray` module while this process is part of a cluster.

    Args:
        address: of a running cluster, "auto" finds the one of this host.

    Raises:
        MissingEvidenceError: ray is not installed, or there is no cluster.
    """
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
    try:
        yield ray
    finally:
        ray.shutdown()


def require_room(ray: Any, what: str, demand: Mapping[str, Any]) -> None:
    """Refuse, before anything runs, what no node could ever hold.

    Args:
        demand: options of a Ray task: num_cpus, resources.

    Raises:
        UsageError: names what is asked for.
    """
    needed = {"CPU": demand["num_cpus"], **demand.get("resources", {})}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(k, 0) >= v for k, v in needed.items()) for node in nodes):
        wanted = ", ".join(f"{count} {name}" for name, count in needed.items())
        raise UsageError(f"{what}: no node of the cluster has {wanted}")


def start(ray: Any, generator: Any, demand: Mapping[str, Any], *arguments: Any) -> Any:
    """Start a generator on some node; what it yields streams back. It is never tried twice."""
    task = ray.remote(generator).options(num_returns="streaming", max_retries=0, **demand)
    return task.remote(*arguments)


def arrivals(ray: Any, streams: Mapping[Any, Name]) -> Iterator[tuple[Name, Any]]:
    """(name of the stream, what it yielded) as it comes; a Ray error in its place ends a stream."""
    open_streams = dict(streams)
    while open_streams:
        (stream,), _ = ray.wait(list(open_streams), num_returns=1, fetch_local=False)
        try:
            value = ray.get(next(stream))
        except StopIteration:
            del open_streams[stream]
        except ray.exceptions.RayError as error:
            yield open_streams.pop(stream), error
        else:
            yield open_streams[stream], value


def lost_to(ray: Any, value: Any) -> str | None:
    """Why a stream ended early, None for what a task yielded."""
    return str(value) if isinstance(value, ray.exceptions.RayError) else None
