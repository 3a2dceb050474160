"""A rank whose hidden rows drift from its batch's is named, in runs that compare no ids."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from engine import LLM
from engine.parallel.executor import LockstepExecutor
from engine.parallel.processes import ProcessExecutor
from engine.row_digest import DIGEST_WIDTH, row_digests, stray_ranks
from engine.schedule.distribution import SamplingRule
from harness.core.errors import ExitCode, RankError
from harness.core.status import RunStatus
from harness.run.token_failures import failure_of
from tests.engine.drifting_ranks import disturb, drifting_main, one_ulp_off
from tests.engine.oracle import settings

_PROMPTS = [[5, 6, 7], [8, 9]]


def _disturbed(llm: LLM, rank: int) -> LLM:
    assert isinstance(llm.executor, LockstepExecutor)
    disturb(llm.executor.workers[rank].model)
    return llm


@pytest.mark.parametrize("numerics", ["exact", "quantised", "fast"])
@pytest.mark.parametrize("cp", [2, 4])
def test_a_follower_off_by_one_ulp_is_named(numerics: str, cp: int) -> None:
    chosen = settings(cp=cp, numerics=numerics)
    with LLM.in_one_process(chosen) as llm:
        llm.generate(_PROMPTS, max_tokens=3)
        with pytest.raises(RankError, match=r"^rank 1 disagrees with ranks? 0") as caught:
            _disturbed(llm, 1).generate(_PROMPTS, max_tokens=1)
    assert caught.value.detail == "RANK_DESYNC"
    assert caught.value.exit_code is ExitCode.MISMATCH
    assert failure_of(caught.value, chosen).status is RunStatus.RANK_DESYNC


def test_ids_alone_would_not_have_told() -> None:
    with LLM.in_one_process(settings(cp=2)) as llm:
        before = llm.generate(_PROMPTS, max_tokens=3, want_logits=True)
        after = _disturbed(llm, 1).generate(_PROMPTS, max_tokens=3, want_logits=True)
    assert [one.token_ids for one in before] == [one.token_ids for one in after]


def test_where_most_agree_the_leader_may_be_the_one_that_drifts() -> None:
    with (
        LLM.in_one_process(settings(cp=4)) as llm,
        pytest.raises(RankError, match=r"^rank 0 disagrees with ranks 1, 2, 3 on the hidden rows"),
    ):
        _disturbed(llm, 0).generate(_PROMPTS, max_tokens=1)


def test_a_rank_of_another_batch_is_named_by_its_number_among_all() -> None:
    with (
        LLM.in_one_process(settings(cp=2, ep=4)) as llm,
        pytest.raises(RankError, match=r"^rank 3 disagrees with rank 2 on the hidden rows"),
    ):
        _disturbed(llm, 3).generate(_PROMPTS, max_tokens=1)


def test_runs_that_draw_from_the_best_tokens_are_watched_too() -> None:
    rule = SamplingRule(temperature=0.8, top_k=5, seed=3)
    with (
        LLM.in_one_process(settings(cp=2)) as llm,
        pytest.raises(RankError, match="rank 1 disagrees"),
    ):
        _disturbed(llm, 1).generate(_PROMPTS, max_tokens=1, sampling=rule)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_process_off_by_one_ulp_is_named(numerics: str) -> None:
    executor = partial(ProcessExecutor, main=drifting_main)
    with (
        LLM(settings(cp=2, numerics=numerics), executor=executor) as llm,
        pytest.raises(RankError, match=r"^rank 1 disagrees with rank 0") as caught,
    ):
        llm.generate(_PROMPTS, max_tokens=1)
    assert caught.value.detail == "RANK_DESYNC"


@pytest.mark.parametrize(("numerics", "cp"), [("fast", 2), ("fast", 4), ("quantised", 2)])
def test_clean_ranks_give_no_alarm(numerics: str, cp: int) -> None:
    prompts = [list(range(2, 30)), [7], [5, 6, 7, 8, 9]]
    with LLM(settings(cp=cp, numerics=numerics)) as llm:
        found = llm.generate(prompts, max_tokens=24)
    assert [len(one.token_ids) for one in found] == [24] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [95, 96])
def test_one_bit_of_one_value_changes_the_digest_of_its_row_alone(
    width: int, dtype: torch.dtype, carrier: torch.dtype
) -> None:
    rows = torch.randn(5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = rows.to(dtype)
    clean = row_digests(rows, carrier)
    assert clean.shape == (5, DIGEST_WIDTH)
    num_bits = 8 * rows.element_size()
    for bit in range(num_bits):
        changed = rows.clone()
        whole = changed.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[num_bits])
        whole[2, 7 * bit % width] ^= torch.tensor(1).bitwise_left_shift(bit).to(whole.dtype)
        differs = (row_digests(changed, carrier) != clean).any(dim=1)
        assert differs.tolist() == [False, False, True, False, False], bit


def test_the_digest_of_a_row_does_not_depend_on_its_company() -> None:
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    whole = row_digests(rows, torch.float32)
    assert torch.equal(whole[2:3], row_digests(rows[2:3], torch.float32))
    assert torch.equal(whole.flip(0), row_digests(rows.flip(0), torch.float32))


def test_changes_that_cancel_in_a_plain_sum_show() -> None:
    rows = torch.randn(1, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    clean = row_digests(rows, torch.float64)
    swapped = rows.clone()
    swapped[0, [4, 9]] = rows[0, [9, 4]]
    negated = rows.clone()
    negated[0, [4, 9]] *= -1
    for changed in (swapped, negated):
        assert not torch.equal(row_digests(changed, torch.float64), clean)


def test_random_pairs_of_bits_never_cancel() -> None:
    draw = np.random.Generator(np.random.PCG64(4))
    rows = torch.randn(1, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    changed = rows.repeat(20000, 1).numpy().view(np.uint64)
    for _ in range(2):
        places, bits = draw.integers(128, size=20000), draw.integers(64, size=20000)
        changed[np.arange(20000), places] ^= np.uint64(1) << bits.astype(np.uint64)
    is_changed = (changed != rows.numpy().view(np.uint64)).any(axis=1)
    digests = row_digests(torch.from_numpy(changed.view(np.float64)), torch.float64)
    differs = (digests != row_digests(rows, torch.float64)).any(dim=1).numpy()
    assert np.array_equal(differs, is_changed)


def test_strays_are_those_that_most_do_not_agree_with() -> None:
    one, other = (torch.full((2, DIGEST_WIDTH), value) for value in (1.0, 2.0))
    assert stray_ranks([one, one, one]) == ()
    assert stray_ranks([one, other]) == (1,)
    assert stray_ranks([other, one, one]) == (0,)
    assert stray_ranks([one, other, one, other]) == (1, 3)


def test_the_fault_of_these_tests_is_one_unit_in_the_last_place() -> None:
    rows = torch.ones(2, 5, dtype=torch.bfloat16)
    moved = one_ulp_off(rows)
    assert (moved != rows).sum() == 2
    assert moved[1, 3] == 1 + 2**-7
