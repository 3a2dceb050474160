"""Which cases a run of `parity` judges, how, and who judges them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from harness.cli import kernel_backend
from harness.core.case import Case, Tolerance
from harness.core.errors import VacuousError

if TYPE_CHECKING:
    from harness.core.results import ParityResult
    from harness.run.isolate import Limits
    from harness.run.parity import ParityTargets

__all__ = [
    "KERNELS",
    "ParityOptions",
    "Selection",
    "judge_here",
    "judge_on_cluster",
    "num_cores",
    "targets_for",
]

REFERENCE = "references.op_table:TABLE"
KERNELS = "kernels.op_table:TABLE"


@dataclass(frozen=True, slots=True)
class Selection:
    """Cases of one or more suites with the budgets of their ops."""

    cases: tuple[Case, ...]
    tolerances: dict[str, dict[str, Tolerance]]

    def on_cores(self, lnc: int) -> Selection:
        """Without the cases that name another LNC degree than the one asked for; 0 keeps all.

        Raises:
            VacuousError: no case is left.
        """
        cases = tuple(case for case in self.cases if not lnc or case.lnc in (0, lnc))
        if not cases:
            raise VacuousError(f"--lnc {lnc}: every chosen case names another number of cores")
        return replace(self, cases=cases)


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """How cases are run.

    Attributes:
        kernels: target text of the table under test.
        repeat: calls whose outputs must be equal byte for byte.
        time_limit_s, memory_limit_gib: of one case.
        lnc: physical cores a launch, 1 or 2; 0 takes the backend's own.
        ray_address: of the cluster to spread cases over; "" judges them on this host.
    """

    backend: str = "interpret"
    jobs: int = 0
    repeat: int = 1
    kernels: str = KERNELS
    time_limit_s: float = 120.0
    memory_limit_gib: float = 6.0
    lnc: int = 0
    ray_address: str = ""

    @property
    def limits(self) -> Limits:
        """Of a worker."""
        from harness.run.isolate import Limits

        memory_limit_bytes = int(self.memory_limit_gib * (1 << 30))
        return Limits(time_limit_s=self.time_limit_s, memory_limit_bytes=memory_limit_bytes)


def judge_here(
    selection: Selection,
    options: ParityOptions,
    bundle_root: Path,
    on_result: Callable[[ParityResult], None],
    _: Console,
) -> list[ParityResult]:
    """Workers of this host judge."""
    from harness.run.parity import run_suite

    environments = _core_environments(options)
    return run_suite(
        selection.cases,
        selection.tolerances,
        targets_for(options.kernels, options.lnc),
        backend=options.backend,
        jobs=len(environments) or options.jobs or num_cores(),
        environments=environments,
        limits=options.limits,
        repeat=options.repeat,
        bundle_root=bundle_root,
        on_result=on_result,
    )


def judge_on_cluster(
    selection: Selection,
    options: ParityOptions,
    bundle_root: Path,
    on_result: Callable[[ParityResult], None],
    screen: Console,
) -> list[ParityResult]:
    """Nodes of a Ray cluster judge; then says how many cases each of them had."""
    from harness.cli.ray_parity import suite_on_ray

    nodes: Counter[str] = Counter()
    results = suite_on_ray(
        selection.cases,
        selection.tolerances,
        targets_for(options.kernels, options.lnc),
        address=options.ray_address,
        backend=options.backend,
        limits=options.limits,
        repeat=options.repeat,
        bundle_root=bundle_root.resolve(),
        on_result=on_result,
        told_node=lambda _, node: nodes.update([node]),
    )
    for node, count in nodes.items():
        screen.print(f"  node {node[:8]}: {count} cases" if node else f"  lost: {count} cases")
    return results


def targets_for(kernels: str, lnc: int = 0) -> ParityTargets:
    """What workers resolve."""
    from harness.run.parity import ParityTargets

    return ParityTargets(
        REFERENCE,
        kernels,
        select_backend=kernel_backend.selector(lnc),
        poison=kernel_backend.POISON,
        counters=kernel_backend.COUNTERS,
        cores=kernel_backend.CORES,
    )


def _core_environments(options: ParityOptions) -> tuple[dict[str, str], ...]:
    """On a device one worker a core, which it keeps for the run; nothing on a CPU."""
    if options.backend != "device":
        return ()
    from harness.core.errors import MissingEvidenceError
    from harness.run.device_cores import core_environments, visible_cores
    from kernels.sdk import find_nki

    state = find_nki()
    if state.kind != "real":
        raise MissingEvidenceError(f"backend 'device' cannot run: {state.reason}")
    return core_environments(options.jobs, visible_cores())


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
