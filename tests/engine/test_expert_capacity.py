"""Experts on slots of a fixed capacity, and the joint decision to run dense (port.md R16, R17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM
from engine.parallel.executor import LockstepExecutor
from engine.parallel.group import Group
from engine.worker import Worker
from harness.core.engine_face import REFERENCE_OPS, Generation
from harness.core.errors import RankError
from tests.engine.oracle import all_ids, settings

_IDS = all_ids("long", "exact")
_PROMPTS = (_IDS[:14], _IDS[20:29])
# 14 + 9 rows visit 2 of 8 experts each: some expert gets more rows than 2, none more than 23.
_TIGHT, _AMPLE = 2, 32


def _workers(llm: LLM) -> list[Worker]:
    executor = llm.executor
    assert isinstance(executor, LockstepExecutor)
    return executor.workers


def _generated(llm: LLM) -> list[Generation]:
    with llm:
        return llm.generate(_PROMPTS, max_tokens=3, want_logits=True)


def _lockstep(**changes: Any) -> LLM:
    return LLM.in_one_process(settings("long", **changes))


def _assert_same(found: list[Generation], expected: list[Generation], bound: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logits is not None
        assert other.logits is not None
        assert np.abs(one.logits - other.logits).max() <= bound


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
@pytest.mark.parametrize(("cp", "ep"), [(1, 1), (2, 2), (1, 2)])
def test_a_capacity_changes_no_logit_with_and_without_overflow(
    numerics: str, cp: int, ep: int
) -> None:
    chosen: dict[str, Any] = {"numerics": numerics, "cp": cp, "ep": ep}
    free = _generated(_lockstep(**chosen))
    # Sums of a row are made in one order either way: quantised values give the same bits.
    bound = 0.0 if numerics == "quantised" else 1e-9
    tight = _generated(_lockstep(**chosen, moe_capacity=_TIGHT))
    ample = _generated(_lockstep(**chosen, moe_capacity=_AMPLE))
    _assert_same(tight, free, bound)
    _assert_same(ample, free, bound)
    assert all(one.counters["moe_dense_reruns"] > 0 for one in tight)
    assert all(one.counters["moe_overflows"] >= one.counters["moe_dense_reruns"] for one in tight)
    assert all(one.counters["moe_dense_reruns"] == 0 for one in ample)
    assert all(one.counters["moe_overflows"] == 0 for one in ample)
    assert all("moe_dense_reruns" not in one.counters for one in free)


def test_without_a_rerun_rows_beyond_the_capacity_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = _generated(_lockstep(ep=2))
    monkeypatch.setattr(Group, "max", lambda self, part, label: torch.zeros_like(part))
    chosen = settings("long", ep=1, moe_capacity=_TIGHT)
    with LLM.in_one_process(chosen) as llm:
        cut = llm.generate(_PROMPTS, max_tokens=3, want_logits=True)
    assert cut[0].logits is not None
    assert free[0].logits is not None
    assert np.abs(cut[0].logits - free[0].logits).max() > 1e-3


def test_decode_steps_have_no_limit_and_prompt_steps_decide_once_a_layer() -> None:
    with _lockstep(ep=2, moe_capacity=_AMPLE) as llm:
        (one,) = llm.generate([_IDS[:5]], max_tokens=1)
        prompt_counts = dict(_workers(llm)[0].experts.counts)
        llm.generate([_IDS[:5]], max_tokens=2)
        decode_counts = dict(_workers(llm)[0].experts.counts)
    places = ("moe_gather", "moe_scatter")
    assert decode_counts == {f"{place}.{layer}": 1 for layer in range(12) for place in places}
    places = (*places, "moe_overflow")
    assert prompt_counts == {f"{place}.{layer}": 1 for layer in range(12) for place in places}
    assert one.counters["collectives"] == 36


def _skewed(llm: LLM, expert: int) -> None:
    """Every row visits one expert first, in every layer."""
    for worker in _workers(llm):
        for block in worker.weights.blocks:
            block.moe.bias[expert] += 100.0


def test_rows_that_all_visit_one_expert_overflow_every_layer() -> None:
    with _lockstep(ep=2) as llm:
        _skewed(llm, 1)
        expected = llm.generate(_PROMPTS, max_tokens=2, want_logits=True)
    with _lockstep(ep=2, moe_capacity=22) as llm:
        _skewed(llm, 1)
        found = llm.generate(_PROMPTS, max_tokens=2, want_logits=True)
        counts = _workers(llm)[0].experts.counts
    _assert_same(found, expected, 1e-9)
    # 23 rows, 22 slots, 12 layers: expert 1 overflows in each, no other can.
    for one in found:
        assert one.counters["moe_overflows"] == 12
        assert one.counters["moe_dense_reruns"] == 12
    assert counts["moe_gather.0"] == 1  # of the decode step that came after


def _local_counts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Experts over the capacity that each rank finds, as steps go on."""
    found: dict[int, list[int]] = {}
    for rank, worker in enumerate(_workers(llm)):
        decide: Callable[[torch.Tensor, int], bool] = worker._exchange.any_overflows

        def noting(count: Any, layer: int, rank: int = rank, decide: Any = decide) -> bool:
            found.setdefault(rank, []).append(int(count))
            return bool(decide(count, layer))

        monkeypatch.setattr(worker._exchange, "any_overflows", noting)
    return found


@pytest.mark.parametrize(("cp", "ep"), [(2, 2), (1, 2)])
def test_an_overflow_on_one_rank_alone_makes_every_rank_run_again(
    monkeypatch: pytest.MonkeyPatch, cp: int, ep: int
) -> None:
    with _lockstep(cp=cp, ep=ep, moe_capacity=13) as llm:
        _skewed(llm, 7)  # of rank 1
        local = _local_counts(llm, monkeypatch)
        found = llm.generate(_PROMPTS[:1], max_tokens=1)
        counts = [dict(worker.experts.counts) for worker in _workers(llm)]
    assert (set(local[0]), set(local[1])) == ({0}, {1})
    assert found[0].counters["moe_dense_reruns"] == 12
    assert counts[0] == counts[1]
    repeated = ("moe.5",) if cp == ep else ("moe_gather.5", "moe_scatter.5")
    assert {label: counts[0][label] for label in repeated} == dict.fromkeys(repeated, 2)
    assert counts[0]["moe_overflow.5"] == 1


@pytest.mark.parametrize(("cp", "ep"), [(2, 2), (1, 2)])
def test_a_rank_that_decides_by_itself_is_caught(
    monkeypatch: pytest.MonkeyPatch, cp: int, ep: int
) -> None:
    asked = Group.max

    def own_answer(self: Group, part: torch.Tensor, label: str) -> torch.Tensor:
        asked(self, part, label)
        return part

    monkeypatch.setattr(Group, "max", own_answer)
    with _lockstep(cp=cp, ep=ep, moe_capacity=13) as llm:
        _skewed(llm, 7)
        with pytest.raises(RankError, match=r"rank 1 is in moe\w*\.0 .*, rank 0 is in \w+\.1 "):
            llm.generate(_PROMPTS[:1], max_tokens=1)


def test_a_process_that_decides_by_itself_is_ended_and_named_by_its_collectives() -> None:
    ops = (*REFERENCE_OPS, "tests.engine.faulty_ops:DECIDES_ALONE")
    chosen = settings("long", ep=2, moe_capacity=22, ops=ops, time_limit_s=5.0)
    with LLM(chosen) as llm, pytest.raises(RankError) as caught:
        llm.generate(_PROMPTS, max_tokens=1)
    assert "first collective that differs" in caught.value.detail
    assert "moe_gather.0" in caught.value.detail
    assert "moe_gather.1" in caught.value.detail
