"""The 240 grid of Trainium: own numbers, near the OCP grid's, and as consistent as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine import LLM
from engine.worker import resolve_numerics
from tests.engine.oracle import all_ids, settings


def _scored(**changes: Any) -> npt.NDArray[np.floating]:
    with LLM(settings("steady_mtp", **changes)) as llm:
        return llm.score(all_ids("steady_mtp", "exact")[:30])


def test_trn2_chunks_agree_bit_for_bit() -> None:
    one_shot = _scored(numerics="trn2", max_num_batched_tokens=32)
    for chunk in (1, 7):
        chunked = _scored(numerics="trn2", max_num_batched_tokens=chunk)
        assert np.array_equal(chunked, one_shot)


def test_trn2_is_another_grid_whose_distance_is_that_of_its_rounding() -> None:
    exact, ocp, trn2 = (
        _scored(numerics=name, max_num_batched_tokens=32) for name in ("exact", "quantised", "trn2")
    )
    assert not np.array_equal(trn2, ocp)
    spread = exact.std()
    noise_ocp, noise_trn2 = (np.abs(rows - exact).mean() / spread for rows in (ocp, trn2))
    # Fewer codes below 240 than below 448, but both have three mantissa bits.
    assert noise_trn2 < 1.5 * noise_ocp
    assert (trn2.argmax(1) == exact.argmax(1)).mean() >= 0.6


def test_the_forced_grid_makes_quantised_into_trn2() -> None:
    forced = resolve_numerics(settings(numerics="quantised", fp8_max=240))
    assert (forced.name, forced.fp8_max) == ("quantised", 240)
    left = _scored(numerics="quantised", fp8_max=240, max_num_batched_tokens=32)
    assert np.array_equal(left, _scored(numerics="trn2", max_num_batched_tokens=32))


def test_two_ranks_agree_with_one_on_the_240_grid() -> None:
    prompt = all_ids("steady_mtp", "exact")[:12]
    with LLM(settings("steady_mtp", numerics="trn2")) as llm:
        (one,) = llm.generate([prompt], max_tokens=2, want_logits=True)
    with LLM.in_one_process(settings("steady_mtp", numerics="trn2", cp=2)) as llm:
        (two,) = llm.generate([prompt], max_tokens=2, want_logits=True)
    assert one.logits is not None
    assert two.logits is not None
    assert one.token_ids == two.token_ids
    assert np.abs(one.logits - two.logits).max() == pytest.approx(0, abs=1e-9)
