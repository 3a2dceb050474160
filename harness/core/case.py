"""One problem for one op, and how its outputs are judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from harness.core.errors import UsageError

__all__ = ["Case", "Tolerance"]

_PART = re.compile(r"^[A-Za-z0-9_.+-]+$")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The three-way budget of measurement.md §1 for one output.

    RMS(e) <= c * RMS(b) + floor and max(e) <= c_max * max(b) + floor, per slice, with
    e = |kernel - golden| and b = |baseline - golden|.

    Attributes:
        slice_axes: output axes that index a slice; the remaining axes are reduced.
        reason: why these numbers, in words. Required.
    """

    c: float
    c_max: float
    floor: float
    slice_axes: tuple[int, ...]
    reason: str

    def __post_init__(self) -> None:
        if min(self.c, self.c_max) <= 0 or self.floor < 0:
            raise UsageError(f"tolerance c={self.c} c_max={self.c_max} floor={self.floor} is void")
        if not self.reason.strip():
            raise UsageError("a tolerance needs a written reason")


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        op: a name of the signature sheet.
        axes: axis letter -> length, in the order of the suite file ({"T": 128, "d": 512}).
        dtype: activation dtype of the inputs.
        family: which case family made it ("base", "tail", "zero_rows", "ties", ...).
        seed: of every random draw of this case.
        layout: "contiguous", "transposed", "strided", "offset" or "expanded".
        scalars: the op's scalar arguments.
        probe: whether null solutions are judged on this case.
        lnc: physical cores a launch of this case, 1 or 2; 0 leaves it to the run.
    """

    op: str
    axes: Mapping[str, int]
    dtype: str = "bfloat16"
    family: str = "base"
    seed: int = 0
    layout: str = "contiguous"
    scalars: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    probe: bool = False
    lnc: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", MappingProxyType(dict(self.axes)))
        object.__setattr__(self, "scalars", MappingProxyType(dict(self.scalars)))
        for name, length in self.axes.items():
            if length < 0:
                raise UsageError(f"{self.op}: axis {name} has length {length}")
        if self.lnc not in (0, 1, 2):
            raise UsageError(f"{self.op}: lnc={self.lnc}: a logical core has 1 or 2 cores")
        for part in (self.op, self.dtype, self.family, self.layout, *self.axes):
            if not _PART.match(part):
                raise UsageError(f"{self.op}: {part!r} cannot be part of a case id")

    def __reduce__(self) -> tuple[object, ...]:
        return (
            Case,
            (
                self.op,
                dict(self.axes),
                self.dtype,
                self.family,
                self.seed,
                self.layout,
                dict(self.scalars),
                self.probe,
                self.lnc,
            ),
        )

    @property
    def case_id(self) -> str:
        """Stable id, a valid pytest id and the join key of every record."""
        axes = "-".join(f"{name}{length}" for name, length in self.axes.items())
        parts = [self.op, axes or "scalar", self.dtype]
        if self.family != "base":
            parts.append(self.family)
        if self.layout != "contiguous":
            parts.append(self.layout)
        if self.lnc:
            parts.append(f"lnc{self.lnc}")
        parts.append(f"s{self.seed}")
        return "/".join(parts)
