"""Registers and what the core says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.isa.enums import nc_version
from kernels.interpreter.isa.instruction import instruction
from kernels.interpreter.registers import VirtualRegister
from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "get_nc_sub_version",
    "get_nc_version",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
]


def get_nc_version() -> nc_version:
    """gen3: the interpreter is a NeuronCore-v3."""
    return nc_version.gen3


def get_nc_sub_version() -> int:
    """No sub-version is modelled."""
    return 0


@instruction
def register_alloc(x: Any = None) -> VirtualRegister:
    """A register holding an int, the value of a 1x1 tile, or 0."""
    LOCAL.program.forbid_replay()  # type: ignore[union-attr]
    register = VirtualRegister()
    if isinstance(x, NkiTensor):
        register.store(_scalar(x, "x"))
    elif isinstance(x, VirtualRegister):
        register.store(x.load())
    elif isinstance(x, int | np.integer):
        register.store(int(x))
    elif x is not None:
        refuse("x", repr(x), "an int, a register or a 1x1 integer tile")
    return register


@instruction
def register_move(dst: VirtualRegister, src: Any) -> None:
    """dst = src, an int or a register."""
    _check_register(dst, "dst")
    if isinstance(src, VirtualRegister):
        dst.store(src.load())
    elif isinstance(src, int | np.integer):
        dst.store(int(src))
    else:
        refuse("src", repr(src), "an int or a register", "register_load reads tiles")


@instruction
def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = the element of a 1x1 integer tile."""
    _check_register(dst, "dst")
    dst.store(_scalar(src, "src"))


@instruction
def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """The element of a 1x1 integer tile = src."""
    _check_register(src, "src")
    if dst.size != 1 or not dst.dtype.is_integer:
        refuse("dst", str(dst.face), "a 1x1 integer tile")
    dst.array[...] = np.asarray(src.load(), np.int64).astype(dst.dtype.carrier)
    dst.wrote()


def _check_register(value: Any, operand: str) -> None:
    if not isinstance(value, VirtualRegister):
        refuse(operand, repr(value), "a register from nisa.register_alloc")


def _scalar(tile: NkiTensor, operand: str) -> int:
    if tile.size != 1 or not tile.dtype.is_integer:
        refuse(operand, str(tile.face), "a 1x1 integer tile")
    return int(tile.read(operand).reshape(-1)[0])
