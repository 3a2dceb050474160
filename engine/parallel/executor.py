"""Who carries plans to the ranks: this process alone, or N ranks in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.graphs.region_times import report_regions, wants_region_timing
from engine.parallel.group import SoloGroup
from engine.parallel.lockstep import Lockstep
from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput, Worker
from harness.core.engine_face import EngineSettings
from harness.core.errors import RankDesyncError

__all__ = ["Executor", "ExecutorFactory", "LockstepExecutor", "SoloExecutor", "agreed_outputs"]


class Executor(Protocol):
    """Runs steps until it is closed.

    A step has one plan for each batch of the topology, with equal `step`, `padded_rows` and
    `has_prompt_rows`: ranks of all batches meet in the experts. A batch without work gets an idle
    plan (engine.parallel.batches).
    """

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        """The output of each batch's first rank, in the plans' order.

        Raises:
            RankError: a rank died or hung.
            RankDesyncError: one disagrees with its batch on ids or hidden rows.
        """

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        """Drafts of each batch; raises as `execute` does."""

    def close(self) -> None:
        """End every rank; idempotent."""


ExecutorFactory = Callable[[EngineSettings, ModelConfig, EngineLimits], Executor]


Output = TypeVar("Output", StepOutput, DraftOutput)


def agreed_outputs(
    outputs: Mapping[int, Output], topology: Topology, compared: Sequence[bool]
) -> tuple[Output, ...]:
    """The output of each batch's first rank, once all its ranks agree.

    Where all ranks sampled, their ids are compared; elsewhere the first has compared the digests
    of hidden rows that came with the others' best tokens (engine.row_digest).

    Args:
        outputs: by rank.
        compared: of each batch, whether all its ranks sampled. They do where a plan wants logits,
            as every comparison of tokens does; else only the first rank runs the sampler.

    Raises:
        RankDesyncError: names the first rank that differs.
    """
    for batch in itertools.compress(range(topology.num_batches), compared):
        first, *others = topology.ranks_of(batch)
        for rank in others:
            if outputs[rank].token_ids != outputs[first].token_ids:
                reason = (
                    f"sampled {outputs[rank].token_ids}, rank {first} sampled "
                    f"{outputs[first].token_ids}"
                )
                raise RankDesyncError(rank, reason)
    first_ones = [outputs[topology.ranks_of(batch)[0]] for batch in range(topology.num_batches)]
    for batch, output in enumerate(first_ones):
        if isinstance(output, StepOutput) and output.strays:
            raise _desync(topology.ranks_of(batch), output.strays)
    return tuple(first_ones)


def _desync(ranks: Sequence[int], strays: Sequence[int]) -> RankDesyncError:
    """Names the first stray, and those it disagrees with."""
    usual = [rank for place, rank in enumerate(ranks) if place not in strays]
    with_whom = f"rank{'s' * (len(usual) > 1)} {', '.join(map(str, usual))}"
    others = ", ".join(str(ranks[place]) for place in strays[1:])
    reason = (
        f"disagrees with {with_whom} on the hidden rows of this step's tokens, which ranks of a "
        f"batch hold bit for bit{f'; so do {others}' if others else ''}"
    )
    return RankDesyncError(ranks[strays[0]], reason)


class SoloExecutor:
    """One rank, in this process."""

    def __init__(self, settings: EngineSettings, config: ModelConfig, limits: EngineLimits) -> None:
        self.worker = Worker(settings, config, limits, SoloGroup())
        if wants_region_timing():
            self.worker.start_region_timing()

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        """See Executor."""
        (plan,) = plans
        return (self.worker.execute(plan),)

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        """See Executor."""
        (plan,) = plans
        return (self.worker.propose(plan),)

    def close(self) -> None:
        """Nothing outlives the object; region times are reported where they were asked for."""
        report_regions(self.worker.region_times)


class LockstepExecutor:
    """All ranks in this process, in rank order: the partition without processes."""

    def __init__(self, settings: EngineSettings, config: ModelConfig, limits: EngineLimits) -> None:
        self._topology = topology = Topology.of(settings)
        self._lockstep = lockstep = Lockstep(topology.num_ranks)
        self.workers = []
        for batch in range(topology.num_batches):
            ranks = topology.ranks_of(batch)
            for rank, group in zip(ranks, lockstep.groups_of(ranks), strict=True):
                # One batch: its group is that of the experts, and counts as one.
                experts = lockstep.groups[rank] if topology.num_batches > 1 else group
                worker = Worker(settings, config, limits, group, experts=experts)
                self.workers.append(worker)
        if wants_region_timing():
            self.workers[0].start_region_timing()

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        """See Executor."""
        outputs = self._lockstep.run(
            lambda rank: self.workers[rank].execute(plans[self._topology.batch_of(rank)])
        )
        compared = [plan.want_logits for plan in plans]
        return agreed_outputs(dict(enumerate(outputs)), self._topology, compared)

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        """See Executor."""
        outputs = self._lockstep.run(
            lambda rank: self.workers[rank].propose(plans[self._topology.batch_of(rank)])
        )
        compared = [True] * len(plans)
        return agreed_outputs(dict(enumerate(outputs)), self._topology, compared)

    def close(self) -> None:
        """Nothing outlives the object; region times are reported where they were asked for."""
        report_regions(self.workers[0].region_times)
