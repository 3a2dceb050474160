"""Instructions that trn2 does not have, or that this interpreter does not execute.

They keep their public signatures and raise one named error.
"""

from __future__ import annotations

from typing import Any, NoReturn

from kernels.interpreter.errors import refuse
from kernels.interpreter.isa.enums import reduce_cmd
from kernels.interpreter.isa.instruction import instruction

__all__ = ["activate2", "exponential", "nc_matmul_mx", "quantize_mx", "rand2", "topk"]

_NEWER = "not available on trn2 (NeuronCore-v4 only)"


def _newer(remedy: str) -> NoReturn:
    refuse("", "called", _NEWER, remedy)


@instruction
def nc_matmul_mx(
    dst: Any,
    stationary: Any,
    moving: Any,
    stationary_scale: Any,
    moving_scale: Any,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> None:
    """MX matmul."""
    _newer("decode the blocks to bfloat16 and use nc_matmul")


@instruction
def quantize_mx(dst: Any, src: Any, dst_scale: Any, name: str | None = None) -> None:
    """MX quantisation."""
    _newer("compute the scales with bit operations on fp32")


@instruction
def activate2(
    dst: Any,
    op: Any,
    data: Any,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: float = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> None:
    """Activation with two fused scalar operations."""
    _newer("use tensor_scalar and activation")


@instruction
def exponential(
    dst: Any,
    src: Any,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> None:
    """Exponential on the Vector engine."""
    _newer("use activation with nl.exp")


@instruction
def rand2(dst: Any, min: Any, max: Any, name: str | None = None) -> None:
    """Uniform random numbers in a range."""
    _newer("use rng and tensor_scalar")


@instruction
def topk(val_dst: Any, idx_dst: Any, src: Any, n: Any, name: str | None = None) -> None:
    """The n largest of a bf16 vector laid out over 16 partitions."""
    refuse(
        "",
        "called",
        "not executed by this interpreter: the public description of its 16-partition layout "
        "does not determine the result",
        "use rounds of max8 and nc_match_replace8",
    )
