"""An LLM whose scheduler, pool and thread are real and whose model is a formula.

The logits of a row depend on its token and position alone, so every continuation and every
log-probability can be computed independently of the engine, and a step costs microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.llm import LLM
from engine.schedule.plan import DraftPlan, StepPlan
from engine.worker import DraftOutput, StepOutput
from harness.core.engine_face import EngineSettings

ORACLE = Path(__file__).parents[1] / "data" / "oracle" / "long"
VOCAB_SIZE = 512
EOS = 1
NO_COLLECTIVES: Mapping[str, float] = {"collectives": 0.0}


def formula_logits(token: int, position: int) -> np.ndarray:
    """Logits [V] after `token` at `position`."""
    random = np.random.default_rng([token, position])
    return random.normal(size=VOCAB_SIZE)


def formula_continuation(prompt: list[int], count: int) -> list[int]:
    """Greedy ids, worked out one by one."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(formula_logits(ids[-1], len(ids) - 1))))
    return ids[len(prompt) :]


def formula_logprobs(ids: list[int]) -> list[float]:
    """log p of each id but the first, teacher-forced."""
    result = []
    for position in range(len(ids) - 1):
        row = formula_logits(ids[position], position)
        result.append(float(row[ids[position + 1]] - np.log(np.exp(row).sum())))
    return result


class FormulaExecutor:
    """Executes plans by formula; `before_step` may wait or raise.

    Args:
        bias: [V], added to every row of logits.
        nan_at: the row at this position of a sequence has a NaN; None: no row has.
        counters: what every step counts.
        prompt_s: a step with rows of a prompt takes so much longer.
    """

    def __init__(
        self,
        before_step: Callable[[int], None],
        bias: np.ndarray | float = 0.0,
        nan_at: int | None = None,
        counters: Mapping[str, float] = NO_COLLECTIVES,
        prompt_s: float = 0.0,
    ) -> None:
        self._before_step = before_step
        self._bias = bias
        self._nan_at = nan_at
        self._counters = counters
        self._prompt_s = prompt_s
        self.plans: list[StepPlan] = []

    def execute(self, plans: Sequence[StepPlan]) -> tuple[StepOutput, ...]:
        self._before_step(plans[0].step)
        if self._prompt_s and any(plan.has_prompt_rows for plan in plans):
            time.sleep(self._prompt_s)
        return tuple(self._output(plan) for plan in plans)

    def _output(self, plan: StepPlan) -> StepOutput:
        self.plans.append(plan)
        rows = [
            self._row(chunk.token_ids[place], chunk.start + place)
            for chunk in plan.chunks
            for place in range(len(chunk.token_ids) - chunk.num_logits, len(chunk.token_ids))
        ]
        ids = tuple(int(np.argmax(row)) for row in rows)
        return StepOutput(
            token_ids=ids,
            logits=np.array(rows) if plan.want_logits and rows else None,
            blocks_excluded=(0.0,) * len(rows),
            counters=dict(self._counters),
            is_finite=tuple(bool(np.isfinite(row).all()) for row in rows),
            top=_best(np.array(rows), plan.num_top) if plan.num_top and rows else None,
        )

    def _row(self, token: int, position: int) -> np.ndarray:
        row = formula_logits(token, position) + self._bias
        if position == self._nan_at:
            row[7] = np.nan
        return row

    def propose(self, plans: Sequence[DraftPlan]) -> tuple[DraftOutput, ...]:
        raise NotImplementedError("the formula drafts nothing")

    def close(self) -> None:
        pass


def _best(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    return ids, np.take_along_axis(rows, ids, axis=1)


def formula_engine(
    checkpoint: Path = ORACLE,
    *,
    step_s: float = 0.0,
    before_step: Callable[[int], None] | None = None,
    num_kv_blocks: int = 0,
    only_ids: Sequence[int] = (),
    nan_at: int | None = None,
    counters: Mapping[str, float] = NO_COLLECTIVES,
    prompt_s: float = 0.0,
) -> LLM:
    """An engine on the configuration of a checkpoint; its weights are never read.

    Args:
        only_ids: generated ids are among these; empty allows all.
        nan_at, counters, prompt_s: see FormulaExecutor.
    """
    bias = np.zeros(VOCAB_SIZE)
    if only_ids:
        bias -= 1000.0
        bias[list(only_ids)] = 0.0

    def wait(_: int) -> None:
        if step_s:
            time.sleep(step_s)

    def open_executor(_: EngineSettings, __: ModelConfig, ___: EngineLimits) -> FormulaExecutor:
        return FormulaExecutor(before_step or wait, bias, nan_at, counters, prompt_s)

    settings = EngineSettings(str(checkpoint), numerics="exact", num_kv_blocks=num_kv_blocks)
    return LLM(settings, executor=open_executor)
