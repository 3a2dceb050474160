"""Padding never changes a real row, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine import LLM
from tests.engine.oracle import all_ids, settings


def _scored_with(
    hook: Callable[[int, torch.Tensor], torch.Tensor] | None, numerics: str, **changes: Any
) -> npt.NDArray[np.floating]:
    with LLM(settings("long", numerics=numerics, **changes)) as llm:
        executor: Any = llm.executor
        executor.worker.model.stream_hook = hook
        return llm.score(all_ids("long", "exact")[:21])


@pytest.mark.parametrize("poison", [float("nan"), 1e30])
@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_poisoned_padding_rows_change_no_real_row(numerics: str, poison: float) -> None:
    def fill(_: int, streams: torch.Tensor) -> torch.Tensor:
        if len(streams) == 32:
            streams = streams.clone()
            streams[21:] = poison
        return streams

    changes = {"max_num_batched_tokens": 32, "token_bucket": 32}
    clean = _scored_with(None, numerics, **changes)
    poisoned = _scored_with(fill, numerics, **changes)
    assert np.isfinite(clean).all()
    assert np.array_equal(clean, poisoned)


def test_poisoned_unused_pages_and_rings_change_nothing() -> None:
    ids = all_ids("long", "exact")[:21]
    with LLM(settings("long", numerics="quantised")) as llm:
        clean = llm.score(ids)
    with LLM(settings("long", numerics="quantised")) as llm:
        executor: Any = llm.executor
        state = executor.worker.state
        for pool in (*state.rings, *state.compressed.values(), *state.index_keys.values()):
            pool.fill_(float("nan"))
        poisoned = llm.score(ids)
    assert np.array_equal(clean, poisoned)


@pytest.mark.parametrize("buckets", [(64, 128), (24, 80, 128), (128,)])
def test_the_context_bucket_changes_no_logit(buckets: tuple[int, ...]) -> None:
    ids = all_ids("long", "exact")
    with LLM(settings("long", numerics="quantised")) as llm:
        expected = llm.score(ids)
    with LLM(settings("long", numerics="quantised", context_buckets=buckets)) as llm:
        assert np.array_equal(llm.score(ids), expected)


def test_bucket_and_padding_of_the_first_step_are_recorded() -> None:
    with LLM(settings("long")) as llm:
        (short,) = llm.generate([[5, 6, 7]], max_tokens=2)
        (long,) = llm.generate([list(range(3, 25))], max_tokens=2)
    assert (short.bucket, short.padding_share, short.num_prefill_steps) == (16, 13 / 16, 1)
    assert (long.bucket, long.padding_share, long.num_prefill_steps) == (16, 0.0, 2)
