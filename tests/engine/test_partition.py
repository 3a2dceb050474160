"""The partition into ranks, computed in one process, against one rank (measurement.md §2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine import LLM
from engine.parallel.lockstep import Lockstep
from harness.core.engine_face import EngineSettings
from harness.core.errors import RankError
from tests.engine.oracle import all_ids, settings


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_two_and_four_ranks_give_the_tokens_and_logits_of_one(numerics: str) -> None:
    prompt = all_ids("long", "exact")[:16]
    with LLM(settings("long", numerics=numerics)) as llm:
        (one,) = llm.generate([prompt], max_tokens=2, want_logits=True)
    for cp in (2, 4):
        with LLM.in_one_process(settings("long", numerics=numerics, cp=cp)) as llm:
            (many,) = llm.generate([prompt], max_tokens=2, want_logits=True)
        assert many.token_ids == one.token_ids
        assert one.logits is not None
        assert many.logits is not None
        assert np.abs(many.logits - one.logits).max() <= 1e-9


def test_collectives_of_a_decode_step_are_those_of_the_specification() -> None:
    prompt = all_ids("long", "exact")[:5]
    expected = {("exact", 2): 2, ("exact", 4): 2, ("quantised", 2): 2, ("quantised", 4): 3}
    for (numerics, cp), per_layer in expected.items():
        with LLM.in_one_process(settings("long", numerics=numerics, cp=cp)) as llm:
            (one,) = llm.generate([prompt], max_tokens=2)
        assert one.counters["collectives_per_layer"] == per_layer
        # Twelve layers, the embedding's sum and the argmax over the vocabulary's shards.
        assert one.counters["collectives"] == 12 * per_layer + 2


def test_greedy_by_stages_equals_greedy_over_all_logits() -> None:
    prompt = all_ids("long", "exact")[:5]
    with LLM.in_one_process(settings("steady_mtp", cp=4)) as llm:
        (gathered,) = llm.generate([prompt], max_tokens=3, want_logits=True)
        (staged,) = llm.generate([prompt], max_tokens=3)
    assert staged.token_ids == gathered.token_ids


@pytest.fixture(scope="module")
def tiny_d(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_checkpoints.generator import generate

    return generate("tiny-D", tmp_path_factory.mktemp("checkpoints") / "tiny-D")


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_sixty_four_ranks_of_one_head_equal_one_rank(tiny_d: Path, numerics: str) -> None:
    prompt = np.random.default_rng(64).integers(3, 500, 20).tolist()
    common = {"numerics": numerics, "num_threads": 1}
    with LLM(EngineSettings(str(tiny_d), **common)) as llm:  # type: ignore[arg-type]
        (one,) = llm.generate([prompt], max_tokens=3, want_logits=True)
    many_settings = EngineSettings(str(tiny_d), cp=64, **common)  # type: ignore[arg-type]
    with LLM.in_one_process(many_settings) as llm:
        (many,) = llm.generate([prompt], max_tokens=3, want_logits=True)
    assert many.token_ids == one.token_ids
    assert one.logits is not None
    assert many.logits is not None
    assert np.abs(many.logits - one.logits).max() <= 1e-9
    assert many.counters["collectives_per_layer"] == (2 if numerics == "exact" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_sixty_four_batches_over_one_expert_group_equal_one_rank(
    tiny_d: Path, numerics: str
) -> None:
    source = np.random.default_rng(65)
    prompts = [source.integers(3, 500, length).tolist() for length in (2, 1, 2)]
    common = {"numerics": numerics, "num_threads": 1, "token_bucket": 2}
    with LLM(EngineSettings(str(tiny_d), **common)) as llm:  # type: ignore[arg-type]
        expected = llm.generate(prompts, max_tokens=2, want_logits=True)
    chosen = EngineSettings(str(tiny_d), ep=64, moe_capacity=1, **common)  # type: ignore[arg-type]
    with LLM.in_one_process(chosen) as llm:
        found = llm.generate(prompts, max_tokens=2, want_logits=True)
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logits is not None
        assert other.logits is not None
        assert np.abs(one.logits - other.logits).max() <= 1e-9
        assert one.counters["collectives_per_layer"] == 2


def test_lockstep_sums_in_rank_order() -> None:
    parts = [1e16, 1.0, -1e16, 1.0]
    lockstep = Lockstep(4)

    def add(rank: int) -> float:
        part = torch.tensor([parts[rank]], dtype=torch.float64)
        return float(lockstep.groups[rank].sum(part, "test"))

    assert lockstep.run(add) == [1.0] * 4  # (1e16 + 1) loses the 1, then 0 + 1


def test_lockstep_hands_on_what_a_rank_raised_and_can_run_again() -> None:
    lockstep = Lockstep(3)

    def fail(rank: int) -> None:
        lockstep.groups[rank].gather(torch.zeros(1), "first")
        if rank == 1:
            raise ArithmeticError("rank 1")
        lockstep.groups[rank].gather(torch.zeros(1), "second")

    with pytest.raises(ArithmeticError, match="rank 1"):
        lockstep.run(fail)
    assert lockstep.run(lambda rank: rank) == [0, 1, 2]


def test_lockstep_notices_a_rank_that_does_not_join() -> None:
    lockstep = Lockstep(2)

    def task(rank: int) -> None:
        if rank == 0:
            lockstep.groups[rank].gather(torch.zeros(1), "alone")

    with pytest.raises(RankError, match=r"rank 0 waits in alone .*: 1 of 2 ranks joined, not 1"):
        lockstep.run(task)


def test_lockstep_notices_ranks_that_meet_in_different_collectives() -> None:
    lockstep = Lockstep(2)

    def task(rank: int) -> None:
        lockstep.groups[rank].gather(torch.zeros(1 + rank), "same")

    with pytest.raises(RankError, match=r"rank 1 is in same float32 \[2\], rank 0 is in same"):
        lockstep.run(task)


def test_lockstep_groups_meet_among_themselves_at_their_own_pace() -> None:
    lockstep = Lockstep(4)
    pairs = [*lockstep.groups_of(range(2)), *lockstep.groups_of(range(2, 4))]

    def task(rank: int) -> float:
        total = torch.tensor([float(rank)])
        for number in range(3 if rank < 2 else 1):
            total = pairs[rank].sum(total, f"pair.{number}")
        return float(lockstep.groups[rank].sum(total, "all"))

    # 0 + 1 doubled twice, and 2 + 3.
    assert lockstep.run(task) == [2 * 4.0 + 2 * 5.0] * 4
