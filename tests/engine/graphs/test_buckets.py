"""Buckets of compiled steps: every step a scheduler can plan is in one that was foreseen."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.cache.draft_inputs import build_draft_inputs
from engine.cache.state import CacheGeometry
from engine.cache.step_inputs import build_step_inputs
from engine.config.limits import EngineLimits, resolve_limits
from engine.config.parse import load_model_config
from engine.graphs.buckets import Bucket, bucket_of, draft_buckets, step_buckets
from engine.model.regions import region_shapes
from engine.outputs import DraftOutput, StepOutput
from engine.parallel.batches import Batches
from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, SequenceChunk, StepPlan
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from tests.engine.oracle import directory, settings

_CONFIG = load_model_config(directory("steady_mtp"))
_RATIOS = frozenset(_CONFIG.ratios) - {0}
_BLOCK = _CONFIG.draft.block_size if _CONFIG.draft else 0
_CPU = torch.device("cpu")


def _limits(**changes: Any) -> EngineLimits:
    return resolve_limits(settings(**changes), _CONFIG)


def _step_output(plan: StepPlan, rng: random.Random) -> StepOutput:
    number = sum(chunk.num_logits for chunk in plan.chunks)
    ids = tuple(rng.randrange(3, 9) for _ in range(number))
    return StepOutput(ids, is_finite=(True,) * number)


def _draft_output(plan: DraftPlan, rng: random.Random) -> DraftOutput:
    """Drafts of random confidence: blocks are cut at every length."""
    number = len(plan.sequences)
    drafts = tuple(tuple(rng.randrange(3, 9) for _ in range(_BLOCK)) for _ in range(number))
    confidence = tuple(tuple(rng.uniform(-2, 4) for _ in range(_BLOCK)) for _ in range(number))
    return DraftOutput(drafts, confidence)


def _bucket(plan: StepPlan, limits: EngineLimits) -> Bucket:
    context = tuple((ratio, -(-plan.context // ratio)) for ratio in sorted(_RATIOS))
    return Bucket(plan.padded_rows, limits.padded_sequences(len(plan.chunks)), context, plan.path)


def _met(limits: EngineLimits, num_batches: int, seed: int) -> tuple[set[Bucket], set[int]]:
    """Buckets of all steps, and numbers of draft blocks, of random traffic."""
    rng = random.Random(seed)
    batches = Batches(Topology(1, num_batches), lambda: Scheduler(limits, 2, eos_token_id=0))
    steps: set[Bucket] = set()
    blocks: set[int] = set()
    num_requests = 40
    while num_requests or batches.has_work:
        for _ in range(rng.choice((0, 0, 1, 1, 4)) if num_requests else 0):
            num_requests -= num_requests > 0
            length = rng.choice((1, 2, 5, 15, 16, 17, 40, 90))
            prompt = [rng.randrange(3, 9) for _ in range(length)]
            request = Request(
                num_requests, length, prompt, rng.randrange(1, 12), True, want_logits=False
            )
            batches.add(request)
        if not batches.has_work:
            continue
        plans = batches.next_plans()
        steps |= {_bucket(plan, limits) for plan in plans}
        batches.apply(plans, [_step_output(plan, rng) for plan in plans], 0)
        drafts = batches.next_drafts() if limits.backtrack else ()
        blocks |= {max(len(plan.sequences), plan.padded_sequences) for plan in drafts}
        if drafts:
            batches.take_drafts([_draft_output(plan, rng) for plan in drafts], 0.3)
    return steps, blocks


@pytest.mark.parametrize("num_batches", [1, 3])
@pytest.mark.parametrize("speculative", ["", "dspark"])
@pytest.mark.parametrize("prefill", ["as-decode", "attention"])
def test_random_traffic_meets_no_bucket_that_was_not_foreseen(
    prefill: str, speculative: str, num_batches: int
) -> None:
    limits = _limits(prefill=prefill, speculative=speculative)
    foreseen = step_buckets(limits, _RATIOS, num_batches)
    met: set[Bucket] = set()
    for seed in range(12):
        steps, blocks = _met(limits, num_batches, seed)
        met |= steps
        proposed = {
            Bucket(number * _BLOCK, number, (), "decode")
            for number in map(limits.padded_sequences, blocks)
        }
        assert proposed <= draft_buckets(limits, _BLOCK)
    assert met <= foreseen
    assert len(met) > 8, "the traffic is varied"


def test_the_bound_is_what_the_docstring_says() -> None:
    """Eight sequences, a token bucket of 128 and three contexts: 11 pairs, 33 buckets."""
    limits = replace(
        _limits(),
        max_model_len=8448,
        max_num_batched_tokens=128,
        token_bucket=128,
        context_buckets=(2048, 4096, 8448),
    )
    found = step_buckets(limits, frozenset({2, 8}))
    assert len(found) == 33
    pairs = {(one.padded_rows, one.num_sequences) for one in found}
    decode = {(number, number) for number in (1, 2, 4, 8)}
    prompts = {(128, number) for number in (1, 2, 4, 8)}
    # One sequence alone never fills more than its budget.
    assert pairs == decode | prompts | {(256, number) for number in (2, 4, 8)}
    assert len(draft_buckets(limits, 5)) == 4


def test_sequences_are_padded_to_powers_of_two_up_to_the_most_there_are() -> None:
    limits = replace(_limits(), max_num_seqs=6)
    assert list(map(limits.padded_sequences, range(1, 7))) == [1, 2, 4, 4, 6, 6]


def _plan(starts: tuple[int, ...], lengths: tuple[int, ...]) -> StepPlan:
    chunks = tuple(
        SequenceChunk(
            slot=place,
            start=start,
            token_ids=(5,) * length,
            history=(),
            pages=tuple(range(1 + 6 * place, 7 + 6 * place)),
            num_logits=1,
        )
        for place, (start, length) in enumerate(zip(starts, lengths, strict=True))
    )
    return StepPlan(0, chunks, 16, 64, want_logits=False)


def test_steps_of_a_bucket_have_the_same_shapes_whatever_their_rows() -> None:
    limits = _limits()
    geometry = CacheGeometry.of(_CONFIG, limits)
    plans = [
        _plan((0, 0, 0), (5, 1, 10)),
        _plan((7, 0, 3, 9), (1, 1, 1, 13)),
        _plan((30, 31, 5), (1, 1, 1)),
    ]
    made = [
        build_step_inputs(plan, geometry, _RATIOS, None, _CPU, padded_sequences=4) for plan in plans
    ]
    assert len({bucket_of(one) for one in made}) == 1
    assert len({region_shapes(one) for one in made}) == 1
    eager = [build_step_inputs(plan, geometry, _RATIOS, None, _CPU) for plan in plans]
    assert len({region_shapes(one) for one in eager}) == len(plans)


def test_rows_name_their_sequence_and_repeated_writes_are_the_last() -> None:
    geometry = CacheGeometry.of(_CONFIG, _limits())
    plan = _plan((0, 0, 0), (2, 1, 3))
    made = build_step_inputs(plan, geometry, _RATIOS, None, _CPU, padded_sequences=4)
    eager = build_step_inputs(plan, geometry, _RATIOS, None, _CPU)
    assert made.row_sequences is not None
    assert made.row_sequences.tolist() == [0, 0, 1, 2, 2, 2, *[0] * 10]
    assert eager.row_sequences is None
    assert eager.row_spans == ((0, 2), (2, 3), (3, 6))
    num_writes = len(eager.ring_sources)
    assert num_writes == 6
    assert made.ring_sources.tolist() == [*eager.ring_sources.tolist(), *[5] * 10]
    last = int(eager.ring_targets[-1])
    assert made.ring_targets.tolist() == [*eager.ring_targets.tolist(), *[last] * 10]


def test_proposals_write_nothing() -> None:
    limits = _limits(speculative="dspark")
    geometry = CacheGeometry.of(_CONFIG, limits)
    inputs = build_draft_inputs(DraftPlan(0, (), 4), geometry, _BLOCK, 1, _CPU)
    assert bucket_of(inputs) in draft_buckets(limits, _BLOCK)
    assert inputs.ring_sources.numel() == inputs.ring_targets.numel() == 0
