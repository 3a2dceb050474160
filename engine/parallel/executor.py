"""Who carries a plan to the ranks: this process alone, or N ranks in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.graphs.region_times import report_regions, wants_region_timing
from engine.parallel.group import SoloGroup
from engine.parallel.lockstep import Lockstep
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput, Worker
from harness.core.engine_face import EngineSettings
from harness.core.errors import RankError

__all__ = ["Executor", "ExecutorFactory", "LockstepExecutor", "SoloExecutor", "agreed_output"]


class Executor(Protocol):
    """Runs plans until it is closed."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """Rank 0's output of a step.

        Raises:
            RankError: a rank died, hung, or sampled other ids than rank 0.
        """

    def propose(self, plan: DraftPlan) -> DraftOutput:
        """Rank 0's drafts; raises as `execute` does."""

    def close(self) -> None:
        """End every rank; idempotent."""


ExecutorFactory = Callable[[EngineSettings, ModelConfig, EngineLimits], Executor]


Output = TypeVar("Output", StepOutput, DraftOutput)


def agreed_output(outputs: list[Output]) -> Output:
    """Rank 0's output, once every rank has sampled the same ids.

    Raises:
        RankError: names the first rank that differs (RANK_DESYNC).
    """
    for rank, output in enumerate(outputs):
        if output.token_ids != outputs[0].token_ids:
            reason = f"sampled {output.token_ids}, rank 0 sampled {outputs[0].token_ids}"
            raise RankError(rank, reason, "RANK_DESYNC")
    return outputs[0]


class SoloExecutor:
    """One rank, in this process."""

    def __init__(self, settings: EngineSettings, config: ModelConfig, limits: EngineLimits) -> None:
        self.worker = Worker(settings, config, limits, SoloGroup())
        if wants_region_timing():
            self.worker.start_region_timing()

    def execute(self, plan: StepPlan) -> StepOutput:
        """See Executor."""
        return self.worker.execute(plan)

    def propose(self, plan: DraftPlan) -> DraftOutput:
        """See Executor."""
        return self.worker.propose(plan)

    def close(self) -> None:
        """Nothing outlives the object; region times are reported where they were asked for."""
        report_regions(self.worker.region_times)


class LockstepExecutor:
    """`settings.cp` ranks in this process, in rank order: the partition without processes."""

    def __init__(self, settings: EngineSettings, config: ModelConfig, limits: EngineLimits) -> None:
        self._lockstep = Lockstep(settings.cp)
        self.workers = [Worker(settings, config, limits, group) for group in self._lockstep.groups]
        if wants_region_timing():
            self.workers[0].start_region_timing()

    def execute(self, plan: StepPlan) -> StepOutput:
        """See Executor."""
        outputs = self._lockstep.run(lambda rank: self.workers[rank].execute(plan))
        return agreed_output(outputs)

    def propose(self, plan: DraftPlan) -> DraftOutput:
        """See Executor."""
        return agreed_output(self._lockstep.run(lambda rank: self.workers[rank].propose(plan)))

    def close(self) -> None:
        """Nothing outlives the object; region times are reported where they were asked for."""
        report_regions(self.workers[0].region_times)
