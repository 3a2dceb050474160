"""Where do two settings part? The first layer and the first op whose tensors differ too much.

Both settings run the same rows. After each layer the candidate's residual streams are replaced by
the oracle's, so that a layer is judged on its own and not on what came before it. Within a layer
every op's output is compared; what ranks hold in parts is put together first. How much is too
much comes from a third run: the oracle's setting with its sums in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.core.errors import VacuousError

__all__ = [
    "Bisection",
    "Capture",
    "OpCall",
    "Parting",
    "bisect",
    "difference",
    "first_parting_layer",
    "reassembled",
]

Parts = Sequence[torch.Tensor]
Steps = Sequence[Sequence[Parts]]

HEAD = -1
"""Layer id of what comes after the last layer: final norm, head and sampling."""
_NOISE_FACTOR = 4.0
# One bf16 rounding that falls the other way in every fourth element.
_BF16_FLOOR = 2.0**-8 / 4
# On its way through a layer such a rounding may cross a border of the fp8 grid and grow: what was
# computed from other inputs may be off by a whole bf16 step. Streams of tiny-A were measured
# 1.4e-3 off with right kernels, 6e-3 with a sink forgotten on one rank of two.
_BF16_GROWN_FLOOR = 2.0**-8
_FP64_FLOOR = 1e-11
_ID_SHARE_FLOOR = 0.02


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op in one layer: `occurrence` counts the calls of this op within the layer."""

    layer: int
    op: str
    occurrence: int

    def __str__(self) -> str:
        place = "head" if self.layer == HEAD else f"layer {self.layer}"
        return f"{place}, {self.op} #{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Capture:
    """What a setting computed on the rows of one prompt.

    Attributes:
        streams: layer -> [T, m, d] after it, before it was replaced.
        rows: rows of each step, padding excluded.
        outputs: call -> step -> output -> parts of the ranks that made the call, in call order.
        desync: the first layer after which ranks hold other streams than rank 0, if any.
    """

    streams: Mapping[int, torch.Tensor]
    rows: tuple[int, ...]
    outputs: Mapping[OpCall, Steps]
    desync: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Parting:
    """A place with its error and what was to be expected there."""

    error: float
    noise: float
    bound: float

    @property
    def is_beyond(self) -> bool:
        """Whether the error cannot come from the order of sums."""
        return not self.error <= self.bound


@dataclass(frozen=True, slots=True)
class Bisection:
    """Errors by layer and, in the first layer that parts, by op.

    Attributes:
        calls, alone: errors of the candidate's own run, and of its ops on the oracle's arguments.
        layer, call: the first beyond their bounds, None where there is none.
        unpaired: the first call that only one side made.
        desync: (layer, rank) of the candidate's first rank that left rank 0.
    """

    layers: Mapping[int, Parting]
    calls: Mapping[OpCall, Parting] = field(default_factory=dict)
    alone: Mapping[OpCall, Parting] = field(default_factory=dict)
    layer: int | None = None
    call: OpCall | None = None
    unpaired: OpCall | None = None
    desync: tuple[int, int] | None = None

    @property
    def parts(self) -> bool:
        """Whether anything was found."""
        found = (self.layer, self.call, self.unpaired, self.desync)
        return any(one is not None for one in found)


def bisect(
    oracle: Capture,
    noise: Capture,
    candidate: Capture,
    swapped: Capture | None = None,
    *,
    fp64: bool,
) -> Bisection:
    """Find the first layer and op at which the candidate leaves the oracle.

    Args:
        noise: the oracle's setting with other sums, its streams replaced by the oracle's as the
            candidate's were.
        swapped: what the candidate's ops gave on the oracle's own arguments; then an op is blamed
            for what it does itself, not for what it was given.
        fp64: whether sums are in fp64 (`exact`, `quantised`, `trn2`).

    Raises:
        VacuousError: nothing was captured.
    """
    if not oracle.streams or not oracle.outputs:
        raise VacuousError("nothing was captured: there is no layer to compare")
    layers = {
        layer: _weigh(right, noise.streams[layer], candidate.streams[layer], fp64)
        for layer, right in oracle.streams.items()
    }
    first = first_parting_layer(oracle, noise, candidate, fp64=fp64)
    place = HEAD if first is None else first
    calls: dict[OpCall, Parting] = {}
    alone: dict[OpCall, Parting] = {}
    unpaired = None
    for call in _in_layer(oracle, candidate, place):
        if call not in oracle.outputs or call not in candidate.outputs:
            unpaired = unpaired or call
            continue
        sides = [(candidate, calls), *([(swapped, alone)] if swapped is not None else [])]
        for side, found in sides:
            floor = _BF16_FLOOR if side is swapped else _BF16_GROWN_FLOOR
            parting = _parting(oracle, noise, side, call, _FP64_FLOOR if fp64 else floor)
            if parting is not None:
                found[call] = parting
    blamed = alone if any(one.is_beyond for one in alone.values()) else calls
    culprit = next((call for call, parting in blamed.items() if parting.is_beyond), None)
    return Bisection(layers, calls, alone, first, culprit, unpaired, candidate.desync)


def first_parting_layer(
    oracle: Capture, noise: Capture, candidate: Capture, *, fp64: bool
) -> int | None:
    """The first layer whose streams are beyond their bound."""
    for layer, right in oracle.streams.items():
        if _weigh(right, noise.streams[layer], candidate.streams[layer], fp64).is_beyond:
            return layer
    return None


def _in_layer(oracle: Capture, candidate: Capture, layer: int) -> Iterator[OpCall]:
    ordered = dict.fromkeys((*oracle.outputs, *candidate.outputs))
    return (call for call in ordered if call.layer == layer)


def _parting(
    oracle: Capture, noise: Capture, side: Capture, call: OpCall, floor: float
) -> Parting | None:
    """The worst output of a call; None where rows of other steps cannot be laid side by side."""
    partings = []
    for index in range(len(oracle.outputs[call][0])):
        right = _whole(oracle, call, index)
        found = _against(oracle, side, call, index)
        if found is None:
            return None
        heard = _against(oracle, noise, call, index) if call in noise.outputs else None
        noisy = difference(*heard) if heard is not None else 0.0
        error = difference(*found)
        if not math.isfinite(noisy):
            noisy = 0.0  # the split run holds this in a layout of its own: no noise to be had
        partings.append(Parting(error, noisy, _NOISE_FACTOR * noisy + _floor(right, floor)))
    return max(partings, key=lambda one: one.error / max(one.bound, 1e-300))


def _weigh(right: torch.Tensor, noisy: torch.Tensor, other: torch.Tensor, fp64: bool) -> Parting:
    noise = difference(right, noisy)
    floor = _FP64_FLOOR if fp64 else _BF16_GROWN_FLOOR
    return Parting(difference(right, other), noise, _NOISE_FACTOR * noise + floor)


def _whole(oracle: Capture, call: OpCall, index: int) -> torch.Tensor:
    """All steps of the oracle's output, flat; of several ranks rank after rank."""
    return torch.cat([part.flatten() for step in oracle.outputs[call] for part in step[index]])


def _against(
    oracle: Capture, side: Capture, call: OpCall, index: int
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """An output of the oracle and of another side, put together and laid side by side."""
    ours = [step[index] for step in oracle.outputs[call]]
    theirs = [step[index] for step in side.outputs[call]]
    if oracle.rows != side.rows or len(ours) != len(theirs):
        joined = _row_aligned(oracle, ours), _row_aligned(side, theirs)
        if joined[0] is None or joined[1] is None:
            return None
        ours, theirs = [joined[0]], [joined[1]]
    pairs = [_paired(right, other) for right, other in zip(ours, theirs, strict=True)]
    right = torch.cat([pair[0].flatten() for pair in pairs])
    if any(pair[1] is None for pair in pairs):
        return right, None
    return right, torch.cat([pair[1].flatten() for pair in pairs if pair[1] is not None])


def _paired(right: Parts, other: Parts) -> tuple[torch.Tensor, torch.Tensor | None]:
    if len(right) == len(other) > 1:
        fits = all(one.shape == two.shape for one, two in zip(right, other, strict=True))
        flat = torch.cat([one.flatten() for one in right])
        return flat, torch.cat([one.flatten() for one in other]) if fits else None
    if len(right) > 1 and len(other) == 1:
        return other[0], reassembled(right, other[0])
    return right[0], reassembled(other, right[0])


def _row_aligned(side: Capture, steps: Sequence[Parts]) -> Parts | None:
    """Each rank's rows of all steps; None where a step's output is not one row a token."""
    for rows, parts in zip(side.rows, steps, strict=False):
        if len(steps) != len(side.rows) or any(part.shape[:1] != (rows,) for part in parts):
            return None
    widths = {tuple(part.shape[1:]) for parts in steps for part in parts}
    if len(widths) > 1 or len({len(parts) for parts in steps}) > 1:
        return None
    return [torch.cat(list(one)) for one in zip(*steps, strict=True)]


def _floor(tensor: torch.Tensor, floor: float) -> float:
    if tensor.is_floating_point():
        return floor
    return 0.0 if floor == _FP64_FLOOR else _ID_SHARE_FLOOR


def difference(right: torch.Tensor, other: torch.Tensor | None) -> float:
    """RMS of the difference over RMS of `right`; of ids, codes and masks the share that differs.

    Infinite where shapes or the positions of what is not finite differ.
    """
    if other is None or other.shape != right.shape:
        return math.inf
    if not right.numel():
        return 0.0
    if not right.is_floating_point():
        return float((right != other).double().mean())
    ours, theirs = right.double(), other.double()
    finite = torch.isfinite(ours)
    if not torch.equal(finite, torch.isfinite(theirs)):
        return math.inf
    scale = float(ours[finite].square().mean().sqrt()) or 1.0
    return float((theirs - ours)[finite].square().mean().sqrt()) / scale


def reassembled(parts: Sequence[torch.Tensor], whole: torch.Tensor) -> torch.Tensor | None:
    """The tensor of which ranks hold parts, shaped like `whole`; None where no layout fits.

    Copies are taken once, and only if they are the same bits. Shards are joined along the axis
    in which they are smaller, as one piece or, where a rank holds its share of two matrices
    (gate and up), by halves. Other parts of full shape are partial sums.
    """
    if len(parts) == 1:
        return parts[0]
    if all(part.shape == whole.shape for part in parts):
        if all(torch.equal(part, parts[0]) for part in parts):
            return parts[0]
        return torch.stack(list(parts)).sum(0) if whole.is_floating_point() else None
    fitting = [one for one in _joined(parts, whole) if one.shape == whole.shape]
    return min(fitting, key=lambda one: difference(whole, one), default=None)


def _joined(parts: Sequence[torch.Tensor], whole: torch.Tensor) -> Iterator[torch.Tensor]:
    axes = [
        axis
        for axis in range(whole.dim())
        if all(_fits(part, whole, axis) for part in parts)
        and sum(part.shape[axis] for part in parts) == whole.shape[axis]
    ]
    for axis in axes:
        yield torch.cat(list(parts), dim=axis)
        if all(part.shape[axis] % 2 == 0 for part in parts):
            halves = zip(*(part.chunk(2, dim=axis) for part in parts), strict=True)
            yield torch.cat([torch.cat(half, dim=axis) for half in halves], dim=axis)


def _fits(part: torch.Tensor, whole: torch.Tensor, axis: int) -> bool:
    if part.dim() != whole.dim():
        return False
    return all(
        ours == theirs or place == axis
        for place, (ours, theirs) in enumerate(zip(part.shape, whole.shape, strict=True))
    )
