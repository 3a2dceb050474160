"""How fast an engine decodes: one function for benchmarks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from engine.llm import LLM
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["DecodeSpeed", "measure_decode"]

_FIRST_ID = 3  # after the special tokens


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """Raw step times of one decode after warm-up.

    Attributes:
        step_ms: time between consecutive tokens, one per step.
        ttft_ms: from the request to its first token, warm.
    """

    label: str
    prompt_len: int
    ttft_ms: float
    step_ms: tuple[float, ...]

    @property
    def median_step_ms(self) -> float:
        """Median time of a decode step."""
        return statistics.median(self.step_ms)

    @property
    def tokens_per_s(self) -> float:
        """At the median step."""
        return 1000.0 / self.median_step_ms


def measure_decode(
    settings: EngineSettings, *, prompt_len: int = 64, num_tokens: int = 33, seed: int = 0
) -> DecodeSpeed:
    """Decode a random prompt once to warm up and once to measure, batch 1, greedy.

    Raises:
        UsageError: fewer than two tokens, or more than max_model_len holds.
    """
    if num_tokens < 2:
        raise UsageError(f"num_tokens={num_tokens}: a step time needs at least 2 tokens")
    with LLM(settings) as llm:
        draw = np.random.default_rng(seed)
        prompt = draw.integers(_FIRST_ID, llm.vocab_size, prompt_len).tolist()
        llm.generate([prompt], max_tokens=num_tokens)
        (one,) = llm.generate([prompt], max_tokens=num_tokens)
    return DecodeSpeed(
        label=settings.label,
        prompt_len=prompt_len,
        ttft_ms=(one.token_ns[0] - one.t_send_ns) / 1e6,
        step_ms=tuple((np.diff(one.token_ns) / 1e6).tolist()),
    )
