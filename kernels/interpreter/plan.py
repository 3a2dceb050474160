"""An instruction validated for its operands' faces, ready to run on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face

__all__ = ["Plan", "Plans"]


class Plan:
    """What one instruction does for operands of these faces. Hashed by identity.

    Attributes:
        run: takes the arrays of the operands.
        read_bytes, write_bytes: traffic of one execution.
        cycles: engine cycles of one execution by the documented rates; an estimate.
        flops: multiply-adds times two (tensor engine).
    """

    __slots__ = (
        "cycles",
        "dtype",
        "engine",
        "flops",
        "free_size",
        "instruction",
        "partitions",
        "read_bytes",
        "run",
        "write_bytes",
    )

    def __init__(
        self,
        instruction: str,
        engine: str,
        run: Callable[..., Any],
        dst: Face,
        sources: tuple[Face, ...],
        cycles: float = 0.0,
        flops: int = 0,
    ) -> None:
        repeats = any(s == 0 and n > 1 for s, n in zip(dst.strides, dst.shape, strict=True))
        # A vector offset gives each row its own address.
        if repeats and dst.size and dst.indirect != "vector":
            refuse("dst", f"{dst} with a stride of 0", "every element of dst is written once")
        self.instruction = instruction
        self.engine = engine
        self.run = run
        self.read_bytes = sum(source.nbytes for source in sources)
        self.write_bytes = dst.nbytes
        self.partitions = dst.partitions
        self.free_size = dst.free_size
        self.dtype = dst.dtype.name
        # The engines stream one element a partition and cycle, with a fixed start-up.
        widest = max([dst.free_size, *(source.free_size for source in sources)])
        self.cycles = cycles or float(widest + 64)
        self.flops = flops


class Plans(dict[Any, Plan]):
    """Plans of one instruction by faces and options; a missing one is validated and built.

    Args:
        build: takes the key's parts.
    """

    __slots__ = ("_build",)

    def __init__(self, build: Callable[..., Plan]) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, key: tuple[Any, ...]) -> Plan:
        plan = self[key] = self._build(*key)
        return plan
