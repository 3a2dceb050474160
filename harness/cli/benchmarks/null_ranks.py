"""Rank processes that take part in everything but the model: what is left is the host's work."""

from __future__ import annotations

from typing import Any

from engine.parallel.rank_process import RankPipes, RankSpec, die_with_parent, serve_messages
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput

__all__ = ["null_rank_main"]

_COUNTERS = {"collectives": 82.0, "launches": 1200.0, "collectives_per_layer": 2.0}


class _NullWorker:
    """Answers at once what a real rank would in kind and size."""

    def execute(self, plan: StepPlan) -> StepOutput:
        num_logits = sum(chunk.num_logits for chunk in plan.chunks)
        return StepOutput(
            token_ids=(7,) * num_logits,
            blocks_excluded=(0.5,) * num_logits,
            counters=dict(_COUNTERS),
            is_finite=(True,) * num_logits,
        )

    def propose(self, plan: DraftPlan) -> DraftOutput:
        raise NotImplementedError(f"step {plan.step}: null ranks do not draft")


def null_rank_main(spec: RankSpec, pipes: RankPipes, ring_buffer: Any) -> None:  # noqa: ARG001
    """Stands in for engine.parallel.rank_process.rank_main."""
    die_with_parent(pipes.lifeline)
    serve_messages(_NullWorker(), spec, pipes)
