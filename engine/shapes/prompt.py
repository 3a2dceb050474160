"""What a prompt launches on either prefill path, worked out on the meta device (port.md R26)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from engine.config.limits import EngineLimits, resolve_limits
from engine.config.model import ModelConfig
from engine.parallel.topology import Topology
from engine.schedule.plan import AttentionPath
from engine.shapes.plan import StepCount, StepCounter
from engine.weights.checkpoint import MetaCheckpoint
from engine.weights.layout import RankLayout
from engine.weights.load import WeightLoader
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.numerics import Numerics

__all__ = ["PREFILL_PATHS", "PromptCost", "prompt_costs"]

PREFILL_PATHS = ("as-decode", "attention")


@dataclass(frozen=True, slots=True)
class PromptCost:
    """Until the first token of one prompt alone, on rank 0.

    Attributes:
        launches: ops called in all its steps.
        num_padding: rows computed beyond the prompt's own.
    """

    prefill: str
    prompt_len: int
    num_steps: int
    launches: int
    collectives: int
    num_padding: int


def prompt_costs(
    config: ModelConfig, settings: EngineSettings, numerics: Numerics, prompt_len: int
) -> tuple[PromptCost, ...]:
    """The same prompt on each path, under the limits each has with these settings.

    Raises:
        UsageError: the prompt and one token do not fit the context.
    """
    num_batches = Topology.sharing(settings.cp, settings.ep).num_batches
    layout = RankLayout(config, numerics, 0, settings.cp, 0, num_batches)
    costs = []
    for prefill in PREFILL_PATHS:
        limits = resolve_limits(replace(settings, prefill=prefill), config)
        if not 0 < prompt_len < limits.max_model_len:
            raise UsageError(
                f"prompt_len={prompt_len}: it is at least 1, and with one token more within "
                f"max_model_len={limits.max_model_len}"
            )
        costs.append(_cost(prefill, limits, layout, prompt_len))
    return tuple(costs)


def _cost(prefill: str, limits: EngineLimits, layout: RankLayout, prompt_len: int) -> PromptCost:
    weights = WeightLoader(MetaCheckpoint(), layout).load(with_draft=False)
    counter = StepCounter(layout.config, limits, layout.numerics, layout, weights)

    @cache
    def count(num_rows: int, padded_rows: int, num_logits: int) -> StepCount:
        # Where a chunk starts changes no launch: what a step writes follows its width alone.
        path: AttentionPath = "prefill" if limits.prefill_buckets else "decode"
        return counter.count(
            "prompt", num_rows, 0, path=path, padded_rows=padded_rows, num_logits=num_logits
        )

    steps: list[StepCount] = []
    num_padding = 0
    for start in range(0, prompt_len, limits.max_num_batched_tokens):
        num_rows = min(limits.max_num_batched_tokens, prompt_len - start)
        if limits.prefill_buckets:
            padded = limits.prefill_rows(num_rows)
        else:
            padded = limits.padded_rows(num_rows, has_prompt_rows=True)
        num_padding += padded - num_rows
        steps.append(count(num_rows, padded, int(start + num_rows == prompt_len)))
    return PromptCost(
        prefill=prefill,
        prompt_len=prompt_len,
        num_steps=len(steps),
        launches=sum(step.launches for step in steps),
        collectives=sum(step.collectives for step in steps),
        num_padding=num_padding,
    )
