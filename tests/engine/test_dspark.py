"""DSpark: drafts equal the official ones, and speculation changes no token (model.md §2.10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from engine import LLM
from engine.schedule.plan import DraftPlan, DraftSequence, SequenceChunk, StepPlan
from engine.schedule.speculation import Acceptance, confident_length, num_accepted
from harness.core.errors import UsageError
from tests.engine.oracle import all_ids, settings, vectors


def _step(start: int, ids: list[int], end: int) -> StepPlan:
    pages = tuple(range(1, 17))
    history = tuple(ids[max(0, start - 3) : start])
    chunk = SequenceChunk(0, start, tuple(ids[start:end]), history, pages, 1)
    return StepPlan(start, (chunk,), end - start, 64, want_logits=False)


def test_drafts_logits_and_confidences_equal_the_official_ones() -> None:
    arrays = vectors("steady_mtp", "exact")
    ids = all_ids("steady_mtp", "exact")
    with LLM(settings("steady_mtp", speculative="dspark")) as llm:
        executor: Any = llm.executor
        executor.execute([_step(0, ids, int(arrays["prefill"]))])
        for row, position in enumerate(arrays["draft_position"].tolist()):
            (stepped,) = executor.execute([_step(position, ids, position + 1)])
            (token,) = stepped.token_ids
            plan = DraftPlan(position, (DraftSequence(0, position, token),))
            (output,) = executor.propose([plan])
            expected = tuple(arrays["draft_tokens"][row].tolist())
            assert (token, *output.token_ids[0]) == expected
            logits = executor.worker.last_proposal.logits[0].numpy()
            assert np.abs(logits - arrays["draft_logits"][row]).max() <= 1e-4
            confidence = np.asarray(output.confidence[0])
            assert np.abs(confidence - arrays["draft_confidence"][row]).max() <= 1e-4


def _prompts() -> list[list[int]]:
    ids = all_ids("steady_mtp", "exact")
    return [ids[:30], ids[5:9], ids[3:20]]


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_speculation_gives_the_tokens_and_logits_of_plain_greedy(
    numerics: str, threshold: float
) -> None:
    with LLM(settings("steady_mtp", numerics=numerics)) as llm:
        plain = llm.generate(_prompts(), max_tokens=9, want_logits=True)
    chosen = settings(
        "steady_mtp", numerics=numerics, speculative="dspark", confidence_threshold=threshold
    )
    with LLM(chosen) as llm:
        speculative = llm.generate(_prompts(), max_tokens=9, want_logits=True)
    for one, other in zip(plain, speculative, strict=True):
        assert other.token_ids == one.token_ids
        assert len(other.token_ns) == 9
        assert one.logits is not None
        assert other.logits is not None
        bound = 1e-9 if numerics == "exact" else 0.0
        assert np.abs(other.logits - one.logits).max() <= bound
        assert other.counters["num_drafts"] > 0
    # Both happen: drafts that are taken, and rows that must be rolled back.
    accepted = sum(one.counters["num_accepted_tokens"] for one in speculative)
    drafted = sum(one.counters["num_draft_tokens"] for one in speculative)
    assert 0 < accepted < drafted


def test_drafts_that_are_always_or_never_right_change_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole blocks accepted, and whole blocks rolled back, over window wraps."""
    prompt = all_ids("steady_mtp", "exact")[:18]
    with LLM(settings("steady_mtp", numerics="quantised")) as llm:
        (plain,) = llm.generate([prompt], max_tokens=22)
    known = [*prompt, *plain.token_ids]
    for shift, num_blocks, accepted in ((0, 4, 17), (1, 20, 0)):
        chosen = settings("steady_mtp", numerics="quantised", speculative="dspark")
        with LLM(chosen) as llm:
            executor: Any = llm.executor
            _replace_drafts(monkeypatch, executor, known, shift)
            (other,) = llm.generate([prompt], max_tokens=22)
        assert other.token_ids == plain.token_ids
        # 21 tokens after the first: 6 + 6 + 6 + 3, or one a step (the last without drafts).
        assert other.counters["num_drafts"] == num_blocks
        assert other.counters["num_accepted_tokens"] == accepted


def _replace_drafts(
    monkeypatch: pytest.MonkeyPatch, executor: Any, known: list[int], shift: int
) -> None:
    propose: Callable[[Sequence[DraftPlan]], Any] = executor.propose

    def scripted(plans: Sequence[DraftPlan]) -> Any:
        from dataclasses import replace

        (plan,) = plans
        (output,) = propose(plans)
        first = plan.sequences[0].position + 2
        right = [*known, *[3] * 6][first : first + 5]
        drafts = tuple((token + shift) % 512 for token in right)
        return (replace(output, token_ids=(drafts,)),)

    monkeypatch.setattr(executor, "propose", scripted)


def test_two_ranks_draft_and_accept_alike() -> None:
    prompt = all_ids("steady_mtp", "exact")[:12]
    one, two = (
        LLM.in_one_process(settings("steady_mtp", speculative="dspark", cp=cp)) for cp in (1, 2)
    )
    (alone,) = one.generate([prompt], max_tokens=8)
    (sharded,) = two.generate([prompt], max_tokens=8)
    assert sharded.token_ids == alone.token_ids
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert sharded.counters[name] == alone.counters[name]


def test_the_end_token_inside_an_accepted_block_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt = all_ids("steady_mtp", "exact")[:18]
    with LLM(settings("steady_mtp", speculative="dspark")) as llm:
        (free,) = llm.generate([prompt], max_tokens=12)
        executor: Any = llm.executor
        _replace_drafts(monkeypatch, executor, [*prompt, *free.token_ids], 0)
        end = free.token_ids[3]
        count = free.token_ids.index(end) + 1
        monkeypatch.setattr(llm.scheduler.schedulers[0], "_eos_token_id", end)
        (ended,) = llm.generate([prompt], max_tokens=12, ignore_eos=False, want_logits=True)
    assert ended.token_ids == free.token_ids[:count]
    assert ended.finish_reason == "stop"
    assert ended.logits is not None
    assert len(ended.logits) == count


def test_a_checkpoint_without_draft_stages_refuses_speculation() -> None:
    with pytest.raises(UsageError, match="has no draft stages"):
        LLM(settings("long", speculative="dspark"))


def test_unknown_speculation_and_threshold_are_refused() -> None:
    with pytest.raises(UsageError, match="choose 'dspark'"):
        settings("steady_mtp", speculative="medusa")
    with pytest.raises(UsageError, match="confidence_threshold=1"):
        settings("steady_mtp", confidence_threshold=1.0)


def test_acceptance_is_the_longest_common_prefix() -> None:
    assert num_accepted((4, 5, 6), (4, 5, 7, 8)) == 2
    assert num_accepted((4, 5), (4, 5, 9)) == 2
    assert num_accepted((4,), (3, 4)) == 0
    assert num_accepted((), (3,)) == 0


def test_confidence_cuts_where_the_prefix_no_longer_survives() -> None:
    # sigmoid(0) = 1/2: one draft survives with 0.5, two with 0.25.
    assert confident_length((0.0, 0.0, 0.0), 0.5) == 1
    assert confident_length((0.0, 0.0, 0.0), 0.2) == 2
    assert confident_length((0.0, 0.0, 0.0), 0.0) == 3
    assert confident_length((-1000.0, 1000.0), 0.01) == 0
    assert confident_length((1000.0, 1000.0), 0.99) == 2


def test_acceptance_counts_by_place() -> None:
    acceptance = Acceptance()
    assert acceptance.counters() == {}
    acceptance.note(5, 2)
    acceptance.note(3, 0)
    acceptance.note(5, 3)
    assert acceptance.counters() == {
        "num_drafts": 3.0,
        "num_draft_tokens": 13.0,
        "num_accepted_tokens": 5.0,
        "mean_acceptance_length": 1 + 5 / 3,
        "accepted_at_0": 2.0,
        "accepted_at_1": 2.0,
        "accepted_at_2": 1.0,
        "accepted_at_3": 0.0,
        "accepted_at_4": 0.0,
    }
