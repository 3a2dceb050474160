"""Tokens reach the caller while the engine still runs."""

from __future__ import annotations

import pytest

from tests.fakes.formula_engine import formula_continuation, formula_engine


def test_each_token_is_told_once_in_order_and_before_the_next_step() -> None:
    told: list[tuple[int, int]] = []
    steps_when_told: list[int] = []
    with formula_engine() as llm:

        def note(index: int, token: int) -> None:
            told.append((index, token))
            steps_when_told.append(len(llm.executor.plans))  # type: ignore[attr-defined]

        results = llm.generate([[5, 6], [9]], max_tokens=4, on_token=note)
    for index, prompt in enumerate(([5, 6], [9])):
        assert [token for place, token in told if place == index] == formula_continuation(prompt, 4)
        assert results[index].token_ids == tuple(formula_continuation(prompt, 4))
    assert steps_when_told == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_callback_that_fails_ends_the_call_and_leaves_no_request_behind() -> None:
    def refuse(_: int, token: int) -> None:
        raise RuntimeError(f"no room for {token}")

    with formula_engine() as llm:
        with pytest.raises(RuntimeError, match="no room"):
            llm.generate([[5, 6]], max_tokens=4, on_token=refuse)
        assert not llm.scheduler.has_work
        assert llm.scheduler.pool.num_free_slots == llm.limits.max_num_seqs
        assert len(llm.generate([[5, 6]], max_tokens=4)[0].token_ids) == 4


def test_requests_join_a_running_engine_and_pick_their_own_tokens() -> None:
    from engine.schedule.choice import TokenChooser
    from engine.schedule.distribution import SamplingRule
    from engine.schedule.request import Request

    with formula_engine() as llm:
        first = Request(1, 2, [5, 6], 6, True, False)
        llm.submit(first)
        llm.step()
        llm.step()
        rows = []
        rule = SamplingRule(temperature=100.0, seed=3)
        second = Request(2, 1, [9], 3, True, True, on_logits=rows.append)
        second.chooser = TokenChooser(rule, eos_token_id=1)
        llm.submit(second)
        while llm.scheduler.has_work:
            llm.step()
    assert first.tokens[2:] == formula_continuation([5, 6], 6)
    assert len(second.tokens) == 4
    assert second.tokens[1:] != formula_continuation([9], 3)
    assert second.logits == []
    assert [len(part) for part in rows] == [1, 1, 1]
