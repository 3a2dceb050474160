"""How far an output is from its golden: the three-way budget per slice (measurement.md §1).

With e = |candidate - golden| and b = |baseline - golden|, every slice must keep
RMS(e) <= c * RMS(b) + floor and max(e) <= c_max * max(b) + floor. The ratio of error to budget of
the worst slice decides, so that a wrong small row cannot hide behind a large one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.case import Tolerance
from harness.core.results import OutputErrors
from harness.run.ulp import UlpHistogram

__all__ = ["NO_BUDGET", "compare_exact", "compare_within_budget"]

# What stands for "an error where none is allowed": JSON knows no infinity.
NO_BUDGET = 1e300
# Elements; the fp64 chunks of a fold stay in a core's cache, and the allocator keeps their memory
# (at twice the size every temporary is mapped anew: 0.94 s of CPU for 10^7 elements, not 0.3).
_CHUNK = 1 << 16


@dataclass(slots=True)
class _SliceSums:
    """Running statistics a slice."""

    error_square: torch.Tensor
    error_max: torch.Tensor
    baseline_square: torch.Tensor
    baseline_max: torch.Tensor

    @classmethod
    def zeros(cls, num_slices: int) -> _SliceSums:
        return cls(*(torch.zeros(num_slices, dtype=torch.float64) for _ in range(4)))

    def add(self, rows: slice, error: torch.Tensor, baseline_error: torch.Tensor) -> None:
        """Fold one chunk [rows, columns] of absolute errors in."""
        for square, largest, values in (
            (self.error_square, self.error_max, error),
            (self.baseline_square, self.baseline_max, baseline_error),
        ):
            largest[rows] = torch.maximum(largest[rows], values.amax(1))
            square[rows] += torch.linalg.vecdot(values, values)

    def ratios(self, tolerance: Tolerance, num_columns: int) -> torch.Tensor:
        """Error over budget a slice; 0/0 is 0, x/0 is NO_BUDGET."""
        rms = (self.error_square / num_columns).sqrt()
        rms_budget = (self.baseline_square / num_columns).sqrt() * tolerance.c + tolerance.floor
        max_budget = self.baseline_max * tolerance.c_max + tolerance.floor
        return torch.maximum(_over(rms, rms_budget), _over(self.error_max, max_budget))


@dataclass(slots=True)
class _Totals:
    """Statistics of the whole output."""

    num_compared: int = 0
    num_below: int = 0
    num_differing: int = 0
    max_relative: float = 0.0
    sums: torch.Tensor | None = None

    def add(self, candidate: torch.Tensor, golden: torch.Tensor, signed: torch.Tensor) -> None:
        self.num_compared += golden.numel()
        num_above = int(torch.count_nonzero(signed > 0))
        num_differing = int(torch.count_nonzero(signed))
        self.num_below += num_differing - num_above
        self.num_differing += num_differing
        flat, other = candidate.flatten(), golden.flatten()
        moments = torch.stack(
            [flat.sum(), other.sum(), flat.dot(flat), other.dot(other), flat.dot(other)]
        )
        self.sums = moments if self.sums is None else self.sums + moments

    def add_relative(self, error: torch.Tensor, golden: torch.Tensor) -> None:
        """Largest error over |golden| where golden is not 0."""
        size = golden.abs()
        size.masked_fill_(size == 0, torch.inf)
        self.max_relative = max(self.max_relative, float(torch.div(error, size, out=size).max()))

    @property
    def below_share(self) -> float | None:
        return self.num_below / self.num_differing if self.num_differing else None

    @property
    def cosine(self) -> float | None:
        """Of mean-removed data; None where a side does not vary."""
        if self.sums is None or not self.num_compared:
            return None
        a, g, aa, gg, ag = (float(value) for value in self.sums)
        count = self.num_compared
        variances = (aa - a * a / count) * (gg - g * g / count)
        if not 0 < variances < float("inf"):
            return None
        return float(max(-1.0, min(1.0, (ag - a * g / count) / variances**0.5)))


def compare_within_budget(
    name: str,
    candidate: torch.Tensor,
    golden: torch.Tensor,
    baseline: torch.Tensor,
    tolerance: Tolerance,
) -> OutputErrors:
    """Judge one float output. The three have one shape; non-finite places agree beforehand and
    are left out here.

    Args:
        candidate: in its own dtype, which is also the ULPs' dtype.
        golden: float64.
        baseline: any float dtype.

    Raises:
        IndexError: the tolerance names an axis that the output lacks.
    """
    slice_axes = tuple(axis % max(1, golden.dim()) for axis in tolerance.slice_axes)
    shape = tuple(golden.shape[axis] for axis in slice_axes)
    rows_c, rows_g, rows_b = (_as_slices(t, slice_axes) for t in (candidate, golden, baseline))
    sums = _SliceSums.zeros(rows_g.shape[0])
    totals, ulps = _Totals(), UlpHistogram()
    for rows, columns in _chunks(rows_g.shape):
        _fold(
            (rows_c[rows, columns], rows_g[rows, columns], rows_b[rows, columns]),
            rows,
            sums,
            totals,
            ulps,
        )
    if not rows_g.numel():
        return _nothing_compared(name)
    ratios = sums.ratios(tolerance, rows_g.shape[1])
    worst = int(ratios.argmax())
    index = _worst_index(rows_c, rows_g, worst, slice_axes, golden.shape)
    count = totals.num_compared
    return OutputErrors(
        name=name,
        num_compared=count,
        max_abs=_finite(sums.error_max.max()),
        max_rel=_finite(torch.tensor(totals.max_relative)),
        rms=_finite((sums.error_square.sum() / count).sqrt()),
        baseline_rms=_finite((sums.baseline_square.sum() / count).sqrt()),
        baseline_max=_finite(sums.baseline_max.max()),
        budget_ratio=_finite(ratios[worst]),
        worst_slice=_unravel(worst, shape),
        worst_index=index,
        worst_kernel_value=_finite(candidate[index]),
        worst_golden_value=_finite(golden[index]),
        cosine=totals.cosine,
        ulp_histogram=ulps.counts(),
        below_golden_share=totals.below_share,
    )


def _fold(
    chunk: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: slice,
    sums: _SliceSums,
    totals: _Totals,
    ulps: UlpHistogram,
) -> None:
    narrow, golden, baseline = chunk
    ulps.add(narrow, golden)
    candidate, golden, baseline = _finite_only(narrow.double(), golden, baseline.double())
    signed = candidate - golden
    totals.add(candidate, golden, signed)
    error = signed.abs_()
    sums.add(rows, error, (baseline - golden).abs_())
    totals.add_relative(error, golden)


def compare_exact(name: str, candidate: torch.Tensor, golden: torch.Tensor) -> OutputErrors:
    """Judge ids, codes, masks and casts bit for bit; one mismatch is NO_BUDGET.

    Both have one shape and one dtype.
    """
    if not golden.numel():
        return _nothing_compared(name)
    differs = _bits(candidate) != _bits(golden)
    num_mismatched = int(torch.count_nonzero(differs))
    wide, other = candidate.double(), golden.double()
    error = torch.nan_to_num((wide - other).abs(), nan=0.0, posinf=NO_BUDGET)
    flat_index = int(differs.flatten().to(torch.uint8).argmax()) if num_mismatched else 0
    index = _unravel(flat_index, tuple(golden.shape))
    ulps, totals = UlpHistogram(), _Totals()
    if golden.is_floating_point():
        ulps.add(candidate.flatten(), other.flatten())
    totals.add(*(torch.nan_to_num(value) for value in (wide, other, wide - other)))
    totals.add_relative(error, torch.nan_to_num(other))
    return OutputErrors(
        name=name,
        num_compared=golden.numel(),
        max_abs=_finite(error.max()),
        max_rel=_finite(torch.tensor(totals.max_relative)),
        rms=_finite(error.square().mean().sqrt()),
        baseline_rms=0.0,
        baseline_max=0.0,
        budget_ratio=NO_BUDGET if num_mismatched else 0.0,
        worst_slice=index[:1],
        worst_index=index,
        worst_kernel_value=_finite(candidate[index]),
        worst_golden_value=_finite(golden[index]),
        cosine=totals.cosine,
        ulp_histogram=ulps.counts(),
        below_golden_share=totals.below_share,
        num_mismatched=num_mismatched,
    )


def _nothing_compared(name: str) -> OutputErrors:
    return OutputErrors(name, 0, 0, 0, 0, 0, 0, NO_BUDGET, (), (), 0, 0, None, {}, None)


def _as_slices(tensor: torch.Tensor, slice_axes: tuple[int, ...]) -> torch.Tensor:
    """[number of slices, elements a slice]."""
    rest = tuple(axis for axis in range(tensor.dim()) if axis not in slice_axes)
    num_slices = 1
    for axis in slice_axes:
        num_slices *= tensor.shape[axis]
    num_columns = tensor.numel() // num_slices if num_slices else 0
    return tensor.permute(*slice_axes, *rest).reshape(num_slices, num_columns)


def _chunks(shape: torch.Size) -> list[tuple[slice, slice]]:
    num_rows, num_columns = shape
    column_step = min(max(1, num_columns), _CHUNK)
    row_step = max(1, _CHUNK // column_step)
    return [
        (slice(row, row + row_step), slice(column, column + column_step))
        for row in range(0, num_rows, row_step)
        for column in range(0, num_columns, column_step)
    ]


def _finite_only(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Zero, on all sides, wherever a side is not finite: no error is counted there."""
    total = tensors[0] + tensors[1] + tensors[2]
    if bool(torch.isfinite(total.sum())):
        return tensors
    keep = torch.stack([torch.isfinite(tensor) for tensor in tensors]).all(0)
    return tuple(torch.where(keep, tensor, 0.0) for tensor in tensors)


def _over(error: torch.Tensor, budget: torch.Tensor) -> torch.Tensor:
    without_budget = torch.zeros_like(error)
    without_budget[error > 0] = NO_BUDGET
    ratio = torch.where(budget > 0, error / budget, without_budget)
    return torch.nan_to_num(ratio, nan=NO_BUDGET, posinf=NO_BUDGET)


def _worst_index(
    rows_c: torch.Tensor,
    rows_g: torch.Tensor,
    worst: int,
    slice_axes: tuple[int, ...],
    shape: torch.Size,
) -> tuple[int, ...]:
    """Full index of the largest error of the worst slice."""
    error = (rows_c[worst].double() - rows_g[worst]).abs()
    column = int(torch.where(torch.isfinite(error), error, -1.0).argmax())
    rest = tuple(axis for axis in range(len(shape)) if axis not in slice_axes)
    index = dict(zip(slice_axes, _unravel(worst, tuple(shape[a] for a in slice_axes)), strict=True))
    index |= dict(zip(rest, _unravel(column, tuple(shape[a] for a in rest)), strict=True))
    return tuple(index[axis] for axis in range(len(shape)))


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for length in reversed(shape):
        flat, place = divmod(flat, length)
        index.append(place)
    return tuple(reversed(index))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers, so that -0.0 is not 0.0."""
    if not tensor.is_floating_point():
        return tensor
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(by_size[tensor.element_size()])


def _finite(value: torch.Tensor) -> float:
    """As a float that JSON knows."""
    return float(
        torch.nan_to_num(value.double(), nan=NO_BUDGET, posinf=NO_BUDGET, neginf=-NO_BUDGET)
    )
