"""What a leader tells its ranks, as bytes that are made once and read by all."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput

__all__ = ["Message", "Serving"]


class Serving(Protocol):
    """What a rank does with a plan (engine.worker.Worker)."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run a step."""

    def propose(self, plan: DraftPlan) -> DraftOutput:
        """Draft."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing to do for every rank.

    Attributes:
        method: of the worker; "rest" asks for nothing, "stop" ends the rank.
        plans: one a batch.
        compared: of each batch, whether all its ranks answer, so that they can be compared; else
            only the first does. Ranks that need not answer skip the sampler.
    """

    method: Literal["execute", "propose", "rest", "stop"]
    plans: tuple[StepPlan, ...] | tuple[DraftPlan, ...] = ()
    compared: tuple[bool, ...] = ()

    def encode(self) -> bytes:
        """For `decode` in a process of this program."""
        return pickle.dumps((self.method, self.plans, self.compared), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def decode(cls, content: bytes | memoryview) -> Message:
        """What was encoded. The bytes come from the leader of this very run."""
        return cls(*pickle.loads(content))

    def answering(self, topology: Topology) -> list[int]:
        """Ranks that answer."""
        return [
            rank
            for batch, all_answer in enumerate(self.compared)
            for rank in topology.ranks_of(batch)[: None if all_answer else 1]
        ]

    def run_on(self, worker: Serving, batch: int) -> StepOutput | DraftOutput:
        """Have a worker of a batch do it; not for "stop"."""
        plan = self.plans[batch]
        if isinstance(plan, DraftPlan):
            return worker.propose(plan)
        return worker.execute(plan)
