"""A call of an op without its values: what a compiler sees of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Argument", "CountedCall", "OpCall"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    Attributes:
        kind: "tensor", "quantised" (codes and scale) or "scalar".
        text: dtype, layout, or the scalar's repr.
        shapes: of the tensor, or of codes and scale.
    """

    kind: str
    text: str
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first tensor; () of a scalar."""
        return self.shapes[0] if self.shapes else ()

    def __str__(self) -> str:
        sizes = "+".join("x".join(map(str, shape)) for shape in self.shapes)
        return f"{self.text}[{sizes}]" if self.shapes else self.text


@dataclass(frozen=True, slots=True)
class OpCall:
    """One specialisation of an op."""

    op: str
    arguments: tuple[Argument, ...]

    @property
    def label(self) -> str:
        """For people: "rms_norm(bfloat16[1x5120], bfloat16[5120], 1e-20)"."""
        return f"{self.op}({', '.join(map(str, self.arguments))})"

    @property
    def key(self) -> str:
        """16 hexadecimal digits, the same in every process."""
        return hashlib.sha256(self.label.encode()).hexdigest()[:16]

    def with_rows(self, rows: int, places: Sequence[int]) -> OpCall:
        """The same call where the tensors at `places` have another number of rows."""
        return replace(
            self,
            arguments=tuple(
                replace(one, shapes=((rows, *one.shape[1:]),))
                if place in places and one.kind == "tensor"
                else one
                for place, one in enumerate(self.arguments)
            ),
        )


@dataclass(frozen=True, slots=True)
class CountedCall:
    """A specialisation with how often a step makes it, and the bytes that one call writes."""

    call: OpCall
    count: int
    output_bytes: int
