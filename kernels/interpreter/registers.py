"""Run-time scalars: registers and the dynamic part of an address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from kernels.interpreter.errors import refuse

if TYPE_CHECKING:
    from kernels.interpreter.tensor import NkiTensor

__all__ = ["ScalarOffset", "VectorOffset", "VirtualRegister"]

_INT32 = (-(2**31), 2**32 - 1)


class VirtualRegister:
    """An integer known only at run time.

    The device traces the kernel before any value exists, so a register cannot steer Python:
    comparing it, adding to it or using it as a Python int is refused.
    """

    __slots__ = ("_value",)

    def __init__(self, value: int = 0) -> None:
        self.store(value)

    def store(self, value: int) -> None:
        """Put `value` in the register."""
        if not _INT32[0] <= value <= _INT32[1]:
            refuse("register", value, "registers hold 32-bit integers")
        self._value = int(value)

    def load(self) -> int:
        """The value now."""
        return self._value

    def _steers_python(self, *_: object) -> NoReturn:
        refuse(
            "register",
            "used as a Python number",
            "its value exists only at run time",
            "compute on a 1x1 tile and register_load it, or loop with nl.fori_loop(step=…)",
        )

    __bool__ = __index__ = __int__ = __float__ = _steers_python
    __lt__ = __le__ = __gt__ = __ge__ = _steers_python
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _steers_python
    __floordiv__ = __mod__ = __neg__ = _steers_python

    def __repr__(self) -> str:
        return "<register>"


@dataclass(frozen=True, slots=True)
class ScalarOffset:
    """Adds `source` times `scale` elements to a view's offset when an instruction runs.

    Attributes:
        limit: largest valid value of the source, for the out-of-bounds rule.
    """

    source: VirtualRegister | NkiTensor
    scale: int
    limit: int

    def value(self) -> int:
        """The run-time index."""
        if isinstance(self.source, VirtualRegister):
            return self.source.load()
        return int(self.source.read("scalar_offset").reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class VectorOffset:
    """Row i of the view starts at `indices[i] * scale` elements; only DMA can follow it.

    Attributes:
        indices: (P, 1) tile of int32 or uint32 in SBUF.
        num_rows: rows the tensor has; larger indices are out of bounds.
    """

    indices: NkiTensor
    scale: int
    num_rows: int
