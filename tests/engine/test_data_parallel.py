"""Ranks with batches of their own that share the experts (port.md R12, R15), against one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM
from engine.parallel.executor import LockstepExecutor
from engine.parallel.lockstep import Lockstep
from engine.schedule.distribution import SamplingRule
from engine.worker import Worker
from harness.core.engine_face import REFERENCE_OPS, Generation
from harness.core.errors import RankError, UsageError
from tests.engine.oracle import all_ids, settings

_IDS = all_ids("long", "exact")
PROMPTS = (_IDS[:17], _IDS[3:8], _IDS[20:29])


def _generated(llm: LLM, prompts: tuple[list[int], ...] = PROMPTS) -> list[Generation]:
    with llm:
        return llm.generate(prompts, max_tokens=3, want_logits=True)


def _largest_difference(found: list[Generation], expected: list[Generation]) -> float:
    """Of all logits; the ids must be equal."""
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    differences = []
    for one, other in zip(found, expected, strict=True):
        assert one.logits is not None
        assert other.logits is not None
        differences.append(float(np.abs(one.logits - other.logits).max()))
    return max(differences)


def _workers(llm: LLM) -> list[Worker]:
    executor = llm.executor
    assert isinstance(executor, LockstepExecutor)
    return executor.workers


@pytest.fixture(scope="module")
def alone() -> dict[str, list[Generation]]:
    return {
        numerics: _generated(LLM(settings("long", numerics=numerics)))
        for numerics in ("exact", "quantised")
    }


@pytest.mark.parametrize(
    ("numerics", "cp", "ep"),
    [
        ("exact", 1, 2),
        ("exact", 1, 3),  # 8 experts do not divide: a layer's are whole on one rank
        ("exact", 2, 4),
        ("quantised", 1, 4),
        ("quantised", 2, 4),
    ],
)
def test_batches_of_their_own_give_the_tokens_and_logits_of_one_rank(
    alone: dict[str, list[Generation]], numerics: str, cp: int, ep: int
) -> None:
    llm = LLM.in_one_process(settings("long", numerics=numerics, cp=cp, ep=ep))
    found = _generated(llm)
    assert _largest_difference(found, alone[numerics]) <= 1e-9
    # 17 rows are more than a token bucket of 16, 5 and 9 are less.
    assert [one.num_prefill_steps for one in found] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["exact", "quantised"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
@pytest.mark.parametrize(("cp", "ep"), [(1, 1), (2, 2), (4, 4), (1, 2), (1, 4), (2, 4)])
def test_every_partition_chunk_and_batch_gives_the_tokens_of_one_rank(
    alone: dict[str, list[Generation]], numerics: str, chunk: int, cp: int, ep: int
) -> None:
    chosen = settings("long", numerics=numerics, cp=cp, ep=ep, max_num_batched_tokens=chunk)
    with LLM.in_one_process(chosen) as llm:
        for order in ((0, 1, 2), (2, 0, 1), (1,)):
            prompts = [PROMPTS[index] for index in order]
            found = llm.generate(prompts, max_tokens=3, want_logits=True)
            expected = [alone[numerics][index] for index in order]
            assert _largest_difference(found, expected) <= 1e-9


def test_a_request_gives_the_same_bits_in_any_batch_of_any_company() -> None:
    with LLM.in_one_process(settings("long", numerics="quantised", ep=2)) as llm:
        runs = {
            order: llm.generate([PROMPTS[i] for i in order], max_tokens=3, want_logits=True)
            for order in ((0, 1, 2), (2, 1, 0), (1,))
        }
    for order, generations in runs.items():
        for index, one in zip(order, generations, strict=True):
            assert one.logits is not None
            assert np.array_equal(one.logits, runs[0, 1, 2][index].logits)


def test_a_batch_without_work_takes_part_and_writes_nothing_but_the_scratch_page() -> None:
    with LLM.in_one_process(settings("long", ep=2)) as llm:
        llm.generate([PROMPTS[0]], max_tokens=2)
        working, idle = (worker.state for worker in _workers(llm))
        ratios, page = llm.config.ratios, llm.limits.page_size
    assert all(ring.any() for ring in working.rings)
    assert not any(ring.any() for ring in idle.rings)
    assert not any(tail.any() for tail in idle.tails.values())
    for pools in (idle.compressed, idle.index_keys):
        for owner, pool in pools.items():
            assert not pool[page // ratios[owner] :].any()


def test_a_layer_takes_one_packed_gather_and_one_scatter() -> None:
    with LLM.in_one_process(settings("long", ep=2)) as llm:
        (one,) = llm.generate([PROMPTS[1]], max_tokens=2)
        counts = _workers(llm)[1].experts.counts
    num_layers = 12
    assert counts == {
        f"{place}.{layer}": 1
        for layer in range(num_layers)
        for place in ("moe_gather", "moe_scatter")
    }
    # At cp=1 attention, embedding and head are whole: nothing else travels (port.md R12, R15).
    assert one.counters["collectives_per_layer"] == 2
    assert one.counters["collectives"] == 2 * num_layers


def test_collectives_of_several_groups_are_attention_and_the_two_of_the_experts() -> None:
    expected = {"exact": 1 + 2, "quantised": 1 + 2}
    for numerics, per_layer in expected.items():
        chosen = settings("long", numerics=numerics, cp=2, ep=4)
        with LLM.in_one_process(chosen) as llm:
            (one,) = llm.generate([PROMPTS[1]], max_tokens=2)
        assert one.counters["collectives_per_layer"] == per_layer
        assert one.counters["collectives"] == 12 * per_layer + 2


@pytest.mark.parametrize(("numerics", "wire"), [("fast", "float32"), ("exact", "float64")])
def test_hidden_rows_ids_and_weights_travel_in_one_buffer(
    monkeypatch: pytest.MonkeyPatch, numerics: str, wire: str
) -> None:
    seen: list[str] = []
    exchange = Lockstep.exchange

    def noting(self: Lockstep, meeting: Any, part: Any) -> Any:
        seen.append(part.name)
        return exchange(self, meeting, part)

    monkeypatch.setattr(Lockstep, "exchange", noting)
    with LLM.in_one_process(settings("long", numerics=numerics, ep=2)) as llm:
        llm.generate([PROMPTS[1]], max_tokens=1)
        hidden, top_k = llm.config.hidden_size, llm.config.experts_per_token
    assert seen[0] == f"moe_gather.0 {wire} [16, {hidden + 2 * top_k}]"


def test_requests_are_dealt_to_the_batch_with_the_least_to_do() -> None:
    with LLM.in_one_process(settings("long", ep=2)) as llm:
        for length in (30, 10, 10, 10):
            request = llm._request(_IDS[:length], max_tokens=2, ignore_eos=True, want_logits=False)
            llm.submit(request)
        first, second = llm.scheduler.schedulers
        # 32 tokens against 12 and 24: the short ones keep each other company.
        assert (first.num_waiting, second.num_waiting) == (1, 3)
        assert (first.num_pending_tokens, second.num_pending_tokens) == (32, 36)
        free = llm.scheduler.pool.num_free_pages
        llm.step()
        assert llm.scheduler.num_running == 4
        assert llm.scheduler.pool.num_free_pages == free - 4 - 3 * 2
        for scheduler in (first, second):
            for running in scheduler.running:
                llm.scheduler.abort(running)
        assert llm.scheduler.pool.num_free_pages == free
        assert not llm.scheduler.has_work


def test_the_recorded_width_is_that_of_the_widest_batch() -> None:
    with LLM.in_one_process(settings("long", ep=2)) as llm:
        long, short = llm.generate([_IDS[:20], _IDS[:3]], max_tokens=4)
    # Rows of all batches travel together, so a batch that decodes one row is padded likewise.
    assert [step.padded_rows for step in long.steps] == [16, 16, 1, 1, 1]
    assert [step.num_rows for step in short.steps] == [3, 1, 1, 1]
    assert [step.padded_rows for step in short.steps] == [16, 16, 1, 1]


def test_drafting_batches_give_the_tokens_of_plain_decoding() -> None:
    ids = all_ids("steady_mtp", "exact")
    prompts = [ids[:12], ids[2:9], ids[:5]]
    with LLM(settings("steady_mtp", numerics="quantised")) as llm:
        plain = llm.generate(prompts, max_tokens=8)
    chosen = settings("steady_mtp", numerics="quantised", ep=2, speculative="dspark")
    with LLM.in_one_process(chosen) as llm:
        drafted = llm.generate(prompts, max_tokens=8)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert all(one.counters["num_drafts"] > 0 for one in drafted)


@pytest.mark.parametrize("speculative", ["", "dspark"])
def test_sampled_requests_draw_the_same_tokens_in_any_batch(speculative: str) -> None:
    ids = all_ids("steady_mtp", "exact")
    prompts = [ids[:12], ids[2:9], ids[:5]]
    rules = [SamplingRule(temperature=1.0, top_p=0.9, seed=seed) for seed in (7, 8, 9)]
    chosen = settings("steady_mtp", numerics="quantised", speculative=speculative)
    with LLM(chosen) as llm:
        one = llm.generate(prompts, max_tokens=6, sampling=rules)
    with LLM.in_one_process(replace(chosen, ep=2)) as llm:
        found = llm.generate(prompts, max_tokens=6, sampling=rules)
    assert [this.token_ids for this in found] == [other.token_ids for other in one]


def test_a_batch_short_of_pages_sends_back_its_own_requests_alone() -> None:
    # Ten pages of 8 tokens a batch; each prompt of 30 grows to 44 tokens, 6 pages.
    prompts = [_IDS[:30], _IDS[1:31], _IDS[2:32], _IDS[3:33]]
    with LLM(settings("long")) as llm:
        expected = llm.generate(prompts, max_tokens=14)
    with LLM.in_one_process(settings("long", ep=2, num_kv_blocks=10)) as llm:
        found = llm.generate(prompts, max_tokens=14)
        preempted = [one.num_preemptions for one in llm.scheduler.schedulers]
        assert llm.scheduler.pool.num_free_pages == 2 * 10
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert all(count > 0 for count in preempted)


@pytest.mark.parametrize("capacity", [0, 2])
def test_batches_take_the_prefill_path_by_themselves(
    alone: dict[str, list[Generation]], capacity: int
) -> None:
    chosen = settings("long", ep=2, prefill="attention", moe_capacity=capacity)
    with LLM.in_one_process(chosen) as llm:
        found = llm.generate(PROMPTS, max_tokens=3, want_logits=True)
    assert _largest_difference(found, alone["exact"]) <= 1e-9
    # The first batch decodes while the second still has a prompt, or both have prompts.
    assert {step.path for one in found for step in one.steps} == {"prefill", "decode"}


@pytest.mark.parametrize("capacity", [0, 2])
def test_padding_of_any_batch_reaches_no_real_row(capacity: int) -> None:
    def run(poison: float | None) -> list[Generation]:
        with LLM.in_one_process(settings("long", ep=2, moe_capacity=capacity)) as llm:
            for worker in _workers(llm):
                worker.model.stream_hook = _poisoning(worker, poison)
            return llm.generate(PROMPTS[:1], max_tokens=2, want_logits=True)

    assert _largest_difference(run(float("nan")), run(None)) == 0


def _poisoning(worker: Worker, poison: float | None) -> Any:
    """Fill rows that hold no token, those of a batch without work included."""
    execute = worker.execute
    rows: list[int] = []

    def noting(plan: Any) -> Any:
        rows.append(plan.num_rows)
        return execute(plan)

    def fill(_: int, streams: torch.Tensor) -> torch.Tensor:
        if poison is not None:
            streams = streams.clone()
            streams[rows[-1] :] = poison
        return streams

    worker.execute = noting  # type: ignore[method-assign]
    return fill


@pytest.mark.parametrize(
    ("numerics", "cp", "ep"),
    [
        ("exact", 1, 2),
        pytest.param("quantised", 1, 4, marks=pytest.mark.slow),
        pytest.param("quantised", 2, 4, marks=pytest.mark.slow),
    ],
)
def test_processes_give_the_bits_of_the_batches_in_one_process(
    numerics: str, cp: int, ep: int
) -> None:
    chosen = settings("long", numerics=numerics, cp=cp, ep=ep)
    expected = _generated(LLM.in_one_process(chosen))
    found = _generated(LLM(chosen))
    assert _largest_difference(found, expected) == 0
    for one, other in zip(found, expected, strict=True):
        assert one.counters == other.counters


def test_a_batch_that_brings_another_width_is_named() -> None:
    with LLM.in_one_process(settings("long", ep=2)) as llm:
        llm.submit(llm._request(_IDS[:20], max_tokens=1, ignore_eos=True, want_logits=False))
        first, second = llm.scheduler.next_plans()
        with pytest.raises(RankError, match=r"rank 1 is in moe_gather.0 float64 \[8, "):
            llm.executor.execute((first, replace(second, padded_rows=8)))


def test_a_rank_that_dies_in_a_batch_without_work_is_named() -> None:
    ops = (*REFERENCE_OPS, "tests.engine.faulty_ops:DIES")
    with LLM(settings("steady_mtp", ep=2, ops=ops)) as llm:
        with pytest.raises(RankError, match=r"rank 1 died with signal 9 \(SIGKILL\)") as caught:
            llm.generate([[5, 6, 7]], max_tokens=4)
        with pytest.raises(UsageError, match="its ranks have ended"):
            llm.generate([[5, 6, 7]], max_tokens=4)
    assert "moe_gather" in caught.value.detail
