"""A fixed pool of pages: who waits, who is sent back, and that nobody can tell (port.md R9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import LLM
from engine.schedule.plan import StepPlan
from engine.schedule.request import Request
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import UsageError
from tests.engine.oracle import all_ids, directory, settings
from tests.fakes.formula_engine import FormulaExecutor, formula_continuation

PAGE = 8


def _served(numerics: str, num_kv_blocks: int, **changes: Any) -> list[Generation]:
    ids = all_ids("long", "exact")
    prompts = [ids[:15], ids[3:10], ids[20:33]]
    chosen = settings("long", numerics=numerics, num_kv_blocks=num_kv_blocks, **changes)
    with LLM(chosen) as llm:
        found = llm.generate(prompts, max_tokens=18, want_logits=True)
        assert llm.scheduler.pool.num_free_pages == llm.limits.num_pages - 1
        assert llm.scheduler.pool.num_free_slots == llm.limits.max_num_seqs
    return found


@pytest.mark.parametrize(
    ("numerics", "changes"),
    [
        ("exact", {}),
        ("quantised", {"prefill": "attention"}),
        ("quantised", {"max_num_batched_tokens": 5}),
    ],
)
def test_a_request_that_was_sent_back_says_what_it_would_have_said(
    numerics: str, changes: dict[str, Any]
) -> None:
    wide = _served(numerics, 0)
    narrow = _served(numerics, 6, **changes)
    assert sum(one.counters.get("num_preemptions", 0) for one in narrow) > 0
    # The oldest is never sent back.
    assert "num_preemptions" not in narrow[0].counters
    assert all("num_preemptions" not in one.counters for one in wide)
    for expected, one in zip(wide, narrow, strict=True):
        assert one.token_ids == expected.token_ids
        assert one.logits is not None
        assert expected.logits is not None
        assert len(one.logits) == len(expected.logits) == 18
        difference = np.abs(one.logits - expected.logits).max()
        assert difference <= (1e-9 if numerics == "exact" else 0.0)
        assert len(one.token_ns) == 18


def test_a_prompt_that_is_scored_gives_each_row_once_though_it_was_sent_back() -> None:
    ids = all_ids("long", "exact")
    with LLM(settings("long", numerics="quantised")) as llm:
        expected = llm.score(ids[:20])
    rows: list[Any] = []
    with LLM(settings("long", numerics="quantised", num_kv_blocks=6)) as llm:
        first = Request(1, 15, ids[:15], 25, True, False)
        scored = Request(2, 20, ids[:20], 12, True, True, scores_prompt=True, on_logits=rows.append)
        llm.submit(first)
        llm.submit(scored)
        while llm.scheduler.has_work:
            llm.step()
    assert scored.num_preemptions > 0
    found = np.concatenate(rows)
    # Each prompt row, and one for every generated token but the first, whose row is the prompt's.
    assert len(found) == 20 + 11
    assert np.array_equal(found[:20], expected)


def test_a_neighbour_that_ends_lets_the_next_in_on_its_pages() -> None:
    ids = all_ids("long", "exact")
    prompts = [ids[:9], ids[3:19], ids[20:33]]
    with LLM(settings("long", numerics="quantised", num_kv_blocks=3)) as llm:
        executor: Any = llm.executor
        pools = [*executor.worker.state.compressed.values()]
        llm.generate(prompts, max_tokens=4)
        # Whatever the first ones left in pages and rings, the last one does not see it.
        dirty = [pool.clone() for pool in pools]
        (again,) = llm.generate([prompts[2]], max_tokens=4, want_logits=True)
    assert any(pool.abs().sum() > 0 for pool in dirty)
    with LLM(settings("long", numerics="quantised")) as llm:
        (fresh,) = llm.generate([prompts[2]], max_tokens=4, want_logits=True)
    assert again.logits is not None
    assert np.array_equal(again.logits, fresh.logits)


def _simulated(**changes: Any) -> tuple[LLM, list[StepPlan]]:
    """A scheduler at work on an executor that computes by formula, with every plan it makes."""
    executor = FormulaExecutor(lambda _: None)
    chosen = EngineSettings(str(directory("long")), **changes)
    return LLM(chosen, executor=lambda *_: executor), executor.plans


@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 24)), min_size=1, max_size=10),
    num_kv_blocks=st.integers(8, 20),
    budget=st.sampled_from([0, 1, 5, 16, 50]),
    prefill=st.sampled_from(["as-decode", "attention"]),
)
def test_whatever_the_load_pages_are_nobody_elses_and_everyone_ends(
    shapes: list[tuple[int, int]], num_kv_blocks: int, budget: int, prefill: str
) -> None:
    engine, plans = _simulated(
        num_kv_blocks=num_kv_blocks, max_num_batched_tokens=budget, prefill=prefill
    )
    prompts = [[3 + place] * length for place, (length, _) in enumerate(shapes)]
    with engine as llm:
        requests = [
            Request(place, len(prompt), list(prompt), max_tokens, True, False)
            for place, (prompt, (_, max_tokens)) in enumerate(zip(prompts, shapes, strict=True))
        ]
        for request in requests:
            llm.submit(request)
        steps = 0
        while llm.scheduler.has_work:
            llm.step()
            steps += 1
            assert steps < 3000, "the requests do not end"
        free = llm.scheduler.pool.num_free_pages
        limits = llm.limits
    assert free == num_kv_blocks
    for plan in plans:
        pages = [page for chunk in plan.chunks for page in chunk.pages]
        assert len(pages) == len(set(pages))
        assert 0 not in pages
        assert len({chunk.slot for chunk in plan.chunks}) == len(plan.chunks)
        assert all(len(chunk.pages) * PAGE >= chunk.end for chunk in plan.chunks)
        assert plan.padded_rows >= plan.num_rows > 0
        assert plan.context >= max(chunk.end for chunk in plan.chunks)
        if plan.path == "prefill":
            assert plan.num_rows <= limits.max_num_batched_tokens
            assert plan.padded_rows in limits.prefill_buckets
    for request, prompt in zip(requests, prompts, strict=True):
        generated = request.tokens[len(prompt) :]
        assert generated == formula_continuation(prompt, request.max_tokens)
        assert request.finish_reason == "length"
        # Every step a request took part in is told, with its padding.
        assert len(request.steps) >= request.num_prefill_steps + len(generated) - 1
        assert all(step.padded_rows >= step.num_rows for step in request.steps)


def test_the_youngest_is_sent_back_and_waits_at_the_head() -> None:
    engine, _ = _simulated(num_kv_blocks=5)
    with engine as llm:
        old = Request(1, 8, [5] * 8, 24, True, False)
        young = Request(2, 8, [6] * 8, 24, True, False)
        late = Request(3, 8, [7] * 8, 3, True, False)
        for request in (old, young, late):
            llm.submit(request)
        (scheduler,) = llm.scheduler.schedulers
        order = []
        while llm.scheduler.has_work:
            llm.step()
            order.append([request.request_id for request in scheduler.running])
    # Five pages: the second page of each is one too many, then the third of two.
    assert [request.num_preemptions for request in (old, young, late)] == [0, 1, 1]
    assert scheduler.num_preemptions == 2
    # The late one, sent back first, does not overtake the one sent back after it.
    alone = order.index([1])
    returned = [next(at for at in range(alone, len(order)) if who in order[at]) for who in (2, 3)]
    assert returned == sorted(returned)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "message"),
    [
        (30, 20, "needs 7 KV pages of 8 tokens, num_kv_blocks is 5"),
        (100, 40, "100 tokens plus max_tokens=40 is 140, max_model_len is 128"),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    prompt_len: int, max_tokens: int, message: str
) -> None:
    engine, plans = _simulated(num_kv_blocks=5)
    with engine as llm, pytest.raises(UsageError, match=message):
        llm.submit(Request(1, prompt_len, [5] * prompt_len, max_tokens, True, False))
    assert plans == []
