"""Spreading parity cases over a Ray cluster: a task judges some cases of one op.

On its node a task judges in a worker process under the limits of any other run. The ledger stays
with the caller. Bundles of failing cases lie below the run's directory on the node that judged
them: a directory that all nodes share keeps them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.cli.ray_cluster import NEURON_CORES, arrivals, joined, lost_to, require_room, start
from harness.core.case import Case
from harness.core.errors import HarnessError
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.isolate import Limits
from harness.run.judge import ToleranceTable
from harness.run.parity import OnResult, check_suite
from harness.run.parity_targets import ParityTargets
from harness.run.parity_workers import ParityWorkers

__all__ = ["case_groups", "parity_demand", "suite_on_ray"]

# Few enough that nodes end at about the same time, many enough that a worker's start is small.
_MAX_CASES = 32


def parity_demand(backend: str) -> dict[str, Any]:
    """What a task occupies: a CPU, and on a device one logical NeuronCore beside it."""
    on_device = {"resources": {NEURON_CORES: 1}} if backend == "device" else {}
    return {"num_cpus": 1, **on_device}


def case_groups(cases: Sequence[Case], size: int = _MAX_CASES) -> list[tuple[Case, ...]]:
    """Cases in order, cut where the op changes and after `size` of them."""
    groups = []
    for _, of_one_op in groupby(cases, key=lambda case: case.op):
        found = tuple(of_one_op)
        groups += [found[first : first + size] for first in range(0, len(found), size)]
    return groups


def suite_on_ray(
    cases: Sequence[Case],
    tolerances: ToleranceTable,
    targets: ParityTargets,
    *,
    address: str,
    backend: str,
    limits: Limits,
    repeat: int,
    bundle_root: Path,
    on_result: OnResult,
    told_node: Callable[[ParityResult, str], None] = lambda *_: None,
) -> list[ParityResult]:
    """Every case on some node; results in the order of the cases. See `run_suite`.

    A node that is lost makes RUN_ERROR of the cases it had not judged.

    Args:
        address: of a running cluster, "auto" finds the one of this host.
        told_node: called with each result and the id of the node that judged it.

    Raises:
        MissingEvidenceError: ray is not installed, there is no cluster, or the backend is not
            there on a node.
        UsageError: see `check_suite`; or no node has what a task occupies.
    """
    check_suite(cases, tolerances)
    demand = parity_demand(backend)
    results: dict[str, ParityResult] = {}
    with joined(address) as ray:
        require_room(ray, f"backend {backend}", demand)
        options = (targets, backend, limits, repeat, bundle_root)
        streams = {
            start(
                ray, _judge, demand, group, {group[0].op: tolerances[group[0].op]}, *options
            ): group
            for group in case_groups(cases)
        }
        for group, value in arrivals(ray, streams):
            for result, node in _results_of(ray, group, value, results, backend):
                results[result.case_id] = result
                told_node(result, node)
                on_result(result)
    return [results[case.case_id] for case in cases]


def _results_of(
    ray: Any, group: Sequence[Case], value: Any, known: dict[str, ParityResult], backend: str
) -> Iterator[tuple[ParityResult, str]]:
    """What arrived, or what its loss means for the cases that are left."""
    reason = lost_to(ray, value)
    if reason is None:
        yield value
        return
    cause = getattr(value, "cause", None)
    if isinstance(cause, HarnessError):
        raise cause
    for case in group:
        if case.case_id not in known:
            message = f"lost with its node or process: {reason.strip().splitlines()[-1]}"
            lost = ParityResult(
                case.case_id, case.op, backend, OpStatus.RUN_ERROR, message, detail=reason
            )
            yield lost, ""


def _judge(
    cases: Sequence[Case],
    tolerances: ToleranceTable,
    targets: ParityTargets,
    backend: str,
    limits: Limits,
    repeat: int,
    bundle_root: Path,
) -> Iterator[tuple[ParityResult, str]]:
    """Runs on a node: results as they are judged."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    workers = ParityWorkers(
        targets,
        tolerances,
        backend=backend,
        limits=limits,
        repeat=repeat,
        bundle_root=bundle_root,
    )
    with workers:
        found: dict[int, ParityResult] = {}
        for index, result in workers.judge(cases):
            found[index] = result
            yield result, node
        workers.shrink(cases, [found[index] for index in range(len(cases))])
