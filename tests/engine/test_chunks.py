"""Decode equals prefill: any chunking and any batch gives the same numbers (model.md §2.11)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine import LLM
from tests.engine.oracle import all_ids, settings


def _scored(name: str, numerics: str, chunk: int) -> npt.NDArray[np.floating]:
    with LLM(settings(name, numerics=numerics, max_num_batched_tokens=chunk)) as llm:
        # Long enough for window wraps, and for candidates to leave blocks out.
        return llm.score(all_ids(name, "exact")[:36])


@pytest.mark.parametrize("name", ["steady_mtp", "long"])
@pytest.mark.parametrize(("numerics", "bound"), [("exact", 1e-9), ("quantised", 0.0)])
def test_chunks_of_any_size_give_the_one_shot_logits(
    name: str, numerics: str, bound: float
) -> None:
    one_shot = _scored(name, numerics, 64)
    assert np.isfinite(one_shot).all()
    for chunk in (1, 2, 3, 7):
        assert np.abs(_scored(name, numerics, chunk) - one_shot).max() <= bound, chunk


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_decoding_gives_the_logits_of_teacher_forcing(numerics: str) -> None:
    prompt = all_ids("long", "exact")[:9]
    with LLM(settings("long", numerics=numerics)) as llm:
        (generation,) = llm.generate([prompt], max_tokens=12, want_logits=True)
        forced = llm.score([*prompt, *generation.token_ids[:-1]])
    assert generation.logits is not None
    difference = np.abs(generation.logits - forced[len(prompt) - 1 :]).max()
    assert difference <= (1e-9 if numerics == "exact" else 0.0)


def _prompts() -> list[list[int]]:
    ids = all_ids("long", "exact")
    return [ids[:1], ids[5:13], ids[3:38], ids[10:26], ids[20:37]]


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_alone_in_a_batch_and_shuffled_are_the_same(numerics: str) -> None:
    prompts = _prompts()
    order = [3, 0, 4, 2, 1]
    with LLM(settings("long", numerics=numerics, max_num_batched_tokens=7)) as llm:
        alone = [llm.generate([prompt], max_tokens=3, want_logits=True)[0] for prompt in prompts]
        batch = llm.generate(prompts, max_tokens=3, want_logits=True)
        shuffled = llm.generate([prompts[at] for at in order], max_tokens=3, want_logits=True)
    bound = 1e-9 if numerics == "exact" else 0.0
    for at, single in enumerate(alone):
        for other in (batch[at], shuffled[order.index(at)]):
            assert other.token_ids == single.token_ids
            assert single.logits is not None
            assert other.logits is not None
            assert np.abs(other.logits - single.logits).max() <= bound


def test_more_prompts_than_pages_wait_for_their_turn_and_get_the_same_tokens() -> None:
    prompts = _prompts()
    with LLM(settings("long", num_kv_blocks=6)) as llm:
        narrow = llm.generate(prompts, max_tokens=3)
    with LLM(settings("long")) as llm:
        wide = llm.generate(prompts, max_tokens=3)
    assert [one.token_ids for one in narrow] == [one.token_ids for one in wide]


def test_used_pages_and_slots_leave_no_trace() -> None:
    prompts = _prompts()
    with LLM(settings("long", numerics="quantised")) as llm:
        fresh = llm.generate([prompts[3]], max_tokens=4, want_logits=True)[0]
        llm.generate(prompts, max_tokens=3)
        again = llm.generate([prompts[3]], max_tokens=4, want_logits=True)[0]
    assert fresh.logits is not None
    assert again.logits is not None
    assert np.array_equal(fresh.logits, again.logits)
