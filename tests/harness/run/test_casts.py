"""The cast definitions against published values, and the judge on encoders that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.core.errors import VacuousError
from harness.run.casts import (
    FORMATS,
    CastSubject,
    bf16_numbers,
    judge_cast,
    power_ceiling_bytes,
)


@pytest.mark.parametrize(
    ("name", "largest", "smallest_normal", "smallest"),
    [
        ("e4m3fn", 448.0, 2.0**-6, 2.0**-9),
        ("e4m3-240", 240.0, 2.0**-6, 2.0**-9),
        ("e5m2", 57344.0, 2.0**-14, 2.0**-16),
        ("e2m1", 6.0, 1.0, 0.5),
    ],
)
def test_members_have_the_published_limits(
    name: str, largest: float, smallest_normal: float, smallest: float
) -> None:
    made = FORMATS[name]
    members = made.members()
    assert np.nanmax(np.where(np.isinf(members), np.nan, members)) == largest
    assert members[1] == smallest
    assert members[1 << made.mantissa_bits] == smallest_normal


def test_e2m1_is_its_eight_values() -> None:
    assert FORMATS["e2m1"].members().tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize("name", FORMATS)
def test_every_member_encodes_to_its_own_code(name: str) -> None:
    made = FORMATS[name]
    codes = np.arange(2 * made.sign_bit, dtype=np.uint8)
    values = made.decoded(codes)
    found = made.encoded(values)
    if made.top == "infinity":
        assert found[np.isinf(values)].tolist() == codes[np.isinf(values)].tolist()
    finite = np.isfinite(values)
    assert found[finite].tolist() == codes[finite].tolist()
    assert set(found[np.isnan(values)].tolist()) <= {-1}


def test_ties_go_to_even_and_overflow_follows_the_format() -> None:
    e4m3fn, ieee, e2m1 = (FORMATS[name] for name in ("e4m3fn", "e4m3-240", "e2m1"))
    assert e2m1.encoded(np.array([0.25, 0.75, 1.25, 2.5, 3.5, 5.0])).tolist() == [0, 2, 2, 4, 6, 6]
    assert e4m3fn.encoded(np.array([464.0, 465.0, -1e9])).tolist() == [0x7E, -1, -1]
    assert e4m3fn.encoded(np.array([465.0, -1e9]), 448.0).tolist() == [0x7E, 0xFE]
    assert ieee.encoded(np.array([247.0, 248.0, -300.0])).tolist() == [0x77, 0x78, 0xF8]
    assert e4m3fn.encoded(np.array([-0.0, 2.0**-10])).tolist() == [0x80, 0]


def test_there_are_65536_bf16_numbers_and_powers_round_up() -> None:
    numbers = bf16_numbers()
    assert numbers.size == 65536
    assert np.isnan(numbers).sum() == 2 * 127
    assert power_ceiling_bytes(np.array([1.0, 1.0078125, 2.0, 2.0**-126])).tolist() == [
        127,
        128,
        128,
        1,
    ]


def _subject(run: Callable[[np.ndarray], np.ndarray]) -> CastSubject:
    inputs = np.array([0.25, 5.0, -6.0, 0.75])
    wanted = np.array([0.0, 6.0, 15.0, 2.0])
    return CastSubject("e2m1", "encode", "test", inputs, wanted, run)


def test_one_wrong_answer_is_found_and_named() -> None:
    right = np.array([0.0, 6.0, 15.0, 2.0])
    assert judge_cast(_subject(lambda _: right)).num_wrong == 0
    half_up = np.array([1.0, 7.0, 15.0, 2.0])
    verdict = judge_cast(_subject(lambda _: half_up))
    assert verdict.num_wrong == 2
    assert "0.25" in verdict.first_wrong
    assert judge_cast(_subject(lambda _: right[:2])).num_wrong == 4
    assert judge_cast(_subject(lambda _: np.array([-0.0, 6.0, 15.0, 2.0]))).num_wrong == 1
    assert judge_cast(_subject(lambda _: np.array([math.nan, 6.0, 15.0, 2.0]))).num_wrong == 1


def test_no_input_is_vacuous() -> None:
    empty = np.array([])
    subject = replace(_subject(lambda _: empty), inputs=empty, wanted=empty)
    with pytest.raises(VacuousError):
        judge_cast(subject)
