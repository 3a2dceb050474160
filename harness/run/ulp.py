"""Distances in units in the last place of the output dtype."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

__all__ = ["UlpHistogram", "ulp_distance"]

_LABELS = ("0", "1", "2", "3-10", ">10")
_EDGES = (0, 1, 2, 10)
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def ulp_distance(candidate: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """How many representable values lie between the candidate and the golden as rounded to the
    candidate's dtype (capped at 2^62). +0 and -0 are one value.

    Args:
        candidate: bfloat16, float16, float32 or float64.
        golden: float64 of the same shape.
    """
    return (_ordinal(candidate) - _ordinal(golden.to(candidate.dtype))).abs()


@dataclass(slots=True)
class UlpHistogram:
    """Counts of distances in five classes; only finite pairs count."""

    _counts: list[int] = field(default_factory=lambda: [0] * len(_LABELS))

    def add(self, candidate: torch.Tensor, golden: torch.Tensor) -> None:
        """Count one chunk."""
        distance = ulp_distance(candidate, golden)
        # A finite sum of both sides holds no special value: the common, fast case.
        if not bool(torch.isfinite(candidate.sum(dtype=torch.float64) + golden.sum())):
            distance = distance[torch.isfinite(candidate) & torch.isfinite(golden)]
        remaining = distance.numel()
        for place, edge in enumerate(_EDGES):
            num_beyond = int(torch.count_nonzero(distance > edge)) if remaining else 0
            self._counts[place] += remaining - num_beyond
            remaining = num_beyond
        self._counts[-1] += remaining

    def counts(self) -> dict[str, int]:
        """Label -> count; labels that counted nothing are left out."""
        return {label: n for label, n in zip(_LABELS, self._counts, strict=True) if n}


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the values, neighbours one apart, both zeros at 0."""
    bits = values.contiguous().view(_INTEGERS[values.element_size()])
    wide = bits.to(torch.int32 if values.element_size() == 2 else torch.int64, copy=True)
    # Sign and magnitude to two's complement: -1 and 0 as the sign, then (magnitude ^ sign) - sign.
    sign = wide >> (8 * wide.element_size() - 1)
    return wide.bitwise_and_(torch.iinfo(bits.dtype).max).bitwise_xor_(sign).sub_(sign)
