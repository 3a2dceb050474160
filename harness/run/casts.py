"""Exhaustive casts: every bf16 number into a small format, and every byte of it back.

The formats are defined here by their fields and by "nearest, ties to the even code", in float64,
where every bf16 number, member and midpoint is exact. Nothing here uses a float8 type of numpy,
ml_dtypes or torch: this is what encoders and decoders of every island are held against.
Sources: OCP 8-bit and microscaling formats (e4m3fn, e5m2, e2m1, ue8m0); IEEE-style e4m3 with a
largest finite number of 240, as Trainium2 has it (nki.md §3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.core.errors import VacuousError

__all__ = [
    "FORMATS",
    "CastSubject",
    "CastVerdict",
    "SmallFormat",
    "bf16_numbers",
    "judge_cast",
    "num_inputs",
    "power_ceiling_bytes",
]

Reals = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]
Top = Literal["infinity", "one_nan", "finite"]


@dataclass(frozen=True, slots=True)
class SmallFormat:
    """A signed float of at most 8 bits with subnormals.

    Attributes:
        top: the highest exponent holds infinity and NaNs, or only one NaN below the sign, or
            nothing but finite numbers.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    top: Top

    @property
    def sign_bit(self) -> int:
        """Its weight within a code."""
        return 1 << (self.exponent_bits + self.mantissa_bits)

    def members(self) -> Reals:
        """The value of each code without sign, NaN and infinity included."""
        magnitudes = np.arange(self.sign_bit)
        exponent = magnitudes >> self.mantissa_bits
        fraction = (magnitudes & ((1 << self.mantissa_bits) - 1)) / (1 << self.mantissa_bits)
        subnormal = np.ldexp(fraction, 1 - self.bias)
        values = np.where(exponent == 0, subnormal, np.ldexp(1 + fraction, exponent - self.bias))
        if self.top == "one_nan":
            values[-1] = np.nan
        if self.top == "infinity":
            highest = exponent == (1 << self.exponent_bits) - 1
            values[highest] = np.where(fraction[highest] == 0, np.inf, np.nan)
        return values

    def decoded(self, codes: Codes) -> Reals:
        """Values of codes below 2 * sign_bit."""
        values = self.members()[codes & (self.sign_bit - 1)]
        signed: Reals = np.where(codes & self.sign_bit, -values, values)
        return signed

    def encoded(self, values: Reals, limit: float | None = None) -> npt.NDArray[np.int64]:
        """The code of each value, -1 for NaN (any NaN code will do).

        Args:
            limit: values are clamped to it first; None: what rounds beyond the largest member is
                infinity, or NaN in a format without.
        """
        finite = self.members()
        finite = finite[np.isfinite(finite)]
        magnitude = np.abs(values) if limit is None else np.minimum(np.abs(values), limit)
        # The next step beyond the largest member is where rounding overflows.
        ladder = np.append(finite, 2 * finite[-1] - finite[-2])
        upper = np.clip(np.searchsorted(ladder, magnitude, side="left"), 1, len(ladder) - 1)
        middle = (ladder[upper - 1] + ladder[upper]) / 2
        tie_to_upper = (magnitude == middle) & (upper % 2 == 0)
        code = np.where((magnitude > middle) | tie_to_upper, upper, upper - 1)
        if self.top == "finite":
            code = np.minimum(code, len(finite) - 1)
        elif self.top == "one_nan":
            code = np.where(code == len(finite), -1, code)
        signed = np.where(np.signbit(values) & (code >= 0), code + self.sign_bit, code)
        return np.where(np.isnan(values), -1, signed)


FORMATS = {
    made.name: made
    for made in (
        SmallFormat("e4m3fn", 4, 3, 7, "one_nan"),
        SmallFormat("e4m3-240", 4, 3, 7, "infinity"),
        SmallFormat("e5m2", 5, 2, 15, "infinity"),
        SmallFormat("e2m1", 2, 1, 1, "finite"),
    )
}


@dataclass(frozen=True, slots=True)
class CastSubject:
    """One implementation of one direction of one format.

    Attributes:
        who: e.g. "references", "interpreter".
        inputs: what is handed over: numbers (float64) or bytes (as float64 whole numbers).
        wanted: the right answer to each input; NaN where any NaN is right.
        run: the implementation's answers as float64; a code that means NaN counts as NaN.
    """

    format: str
    direction: Literal["encode", "decode"]
    who: str
    inputs: Reals
    wanted: Reals
    run: Callable[[Reals], Reals]


@dataclass(frozen=True, slots=True)
class CastVerdict:
    """How many of how many answers differ, and the first that does in words."""

    subject: CastSubject
    num_compared: int
    num_wrong: int
    first_wrong: str = ""


def bf16_numbers() -> Reals:
    """All 65,536 bf16 bit patterns as float64."""
    bits = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with np.errstate(invalid="ignore"):
        return bits.view(np.float32).astype(np.float64)


def power_ceiling_bytes(values: Reals) -> Reals:
    """ue8m0 bytes of the smallest power of two at or above each positive number."""
    powers = np.ldexp(1.0, np.arange(-127, 128))
    return np.searchsorted(powers, values, side="left").astype(np.float64)


def judge_cast(subject: CastSubject) -> CastVerdict:
    """Every answer, bit for bit: zeros by their sign, NaN by being NaN.

    Raises:
        VacuousError: there is no input.
    """
    if not subject.inputs.size:
        raise VacuousError(f"{subject.who}: no input of {subject.format} to {subject.direction}")
    found = subject.run(subject.inputs)
    if found.shape != subject.wanted.shape:
        message = f"{found.shape} answers, {subject.wanted.shape} expected"
        return CastVerdict(subject, subject.inputs.size, subject.inputs.size, message)
    both_nan = np.isnan(found) & np.isnan(subject.wanted)
    same = (found == subject.wanted) & (np.signbit(found) == np.signbit(subject.wanted))
    wrong = np.flatnonzero(~(same | both_nan))
    if not wrong.size:
        return CastVerdict(subject, subject.inputs.size, 0)
    at = wrong[0]
    message = f"{subject.inputs[at]!r} gives {found[at]!r}, {subject.wanted[at]!r} is right"
    return CastVerdict(subject, subject.inputs.size, wrong.size, message)


def num_inputs(verdicts: Sequence[CastVerdict]) -> int:
    """All answers compared."""
    return sum(verdict.num_compared for verdict in verdicts)
