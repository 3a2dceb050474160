"""Prompts whose length ends at, before and behind every border of model and engine.

One prompt alone in one step is the oracle; the others cut it into chunks, take the prefill path,
and serve all lengths together in a shuffled order.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from engine import LLM
from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from harness.core.engine_face import Generation
from tests.engine.oracle import all_ids, settings

NUM_TOKENS = 3
BOUNDS = {"exact": 1e-9, "quantised": 0.0}
PATHS: dict[str, dict[str, Any]] = {
    "chunks-of-13": {"max_num_batched_tokens": 13},
    "buckets": {"token_bucket": 32, "context_buckets": (32, 80, 128), "page_size": 4},
    "prefill-attention": {"prefill": "attention"},
    "prefill-chunks-of-24": {"prefill": "attention", "max_num_batched_tokens": 24},
}


def _borders(config: ModelConfig, limits: EngineLimits) -> list[int]:
    """Lengths with which something just fills, lacks one, or overflows by one."""
    index = config.index
    full = [
        config.window,
        limits.page_size,
        *set(config.ratios) - {0},
        limits.token_bucket,
        *limits.context_buckets[:-1],
        index.candidate_blocks * index.candidate_block_size,
    ]
    lengths = {1, *(size + step for size in full for step in (-1, 0, 1))}
    longest = limits.max_model_len - NUM_TOKENS
    return sorted(length for length in {*lengths, longest} if length >= 1)


def _prompt(length: int) -> list[int]:
    """Ids of its own for each length: other prompts route to other experts."""
    source = random.Random(length)
    known = all_ids("long", "exact")
    return [source.choice(known) for _ in range(length)]


@cache
def _alone_in_one_step(numerics: str) -> dict[int, Generation]:
    chosen = settings("long", numerics=numerics, max_num_batched_tokens=128)
    with LLM(chosen) as llm:
        return {
            length: llm.generate([_prompt(length)], max_tokens=NUM_TOKENS, want_logits=True)[0]
            for length in _borders(llm.config, llm.limits)
        }


def test_the_lengths_are_those_of_model_and_engine() -> None:
    with LLM(settings("long")) as llm:
        lengths = _borders(llm.config, llm.limits)
    assert lengths == [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 125]


def test_the_oracle_sees_windows_wrap_and_blocks_left_out() -> None:
    with LLM(settings("long")) as llm:
        llm.generate([_prompt(125)], max_tokens=NUM_TOKENS)
        assert llm.facts()["num_window_wraps"] >= 15
        assert llm.facts()["min_blocks_excluded_share"] > 0.5
    for one in _alone_in_one_step("exact").values():
        assert one.logits is not None
        assert one.num_prefill_steps == 1
        assert np.isfinite(one.logits).all()


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
@pytest.mark.parametrize("path", list(PATHS))
def test_every_length_says_the_same_on_every_path_and_in_any_company(
    path: str, numerics: str
) -> None:
    expected = _alone_in_one_step(numerics)
    lengths = list(expected)
    random.Random(path).shuffle(lengths)
    with LLM(settings("long", numerics=numerics, **PATHS[path])) as llm:
        prompts = [_prompt(length) for length in lengths]
        found = llm.generate(prompts, max_tokens=NUM_TOKENS, want_logits=True)
    for length, one in zip(lengths, found, strict=True):
        assert one.token_ids == expected[length].token_ids, length
        assert one.logits is not None
        assert expected[length].logits is not None
        assert np.abs(one.logits - expected[length].logits).max() <= BOUNDS[numerics], length
