"""DeepGEMM's fused expert layer (model.md §5.2, fp8_fp4_mega_moe): dispatch, w1/w3, SwiGLU with
the routing weight, w2, combine, plus the shared expert, over the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from harness.core.numerics import FAST
from references.deep_ep import ElasticBuffer
from references.operands import refuse, require, require_shape
from references.scaled_matrices import ScaledMatrix, matrix_values, per_token_cast
from references.swiglu import swiglu

__all__ = [
    "SymmBuffer",
    "fp8_fp4_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "transform_weights_for_mega_moe",
]

_OP = "fp8_fp4_mega_moe"


@dataclass(frozen=True, slots=True)
class SymmBuffer:
    """Inputs of one rank, filled by the caller, and its end of the exchange.

    Attributes:
        x, x_sf: fp8 tokens [max tokens, H] and float32 scales [max tokens, H/32].
        topk_idx, topk_weights: [max tokens, k] int64 (-1: none) and float32.
    """

    x: torch.Tensor
    x_sf: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    num_experts: int
    exchange: ElasticBuffer


def get_symm_buffer_for_mega_moe(
    group: dist.ProcessGroup | None,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
) -> SymmBuffer:
    """An empty buffer; group None means one process.

    Raises:
        UsageError: hidden is no multiple of 32, or a size is below 1.
    """
    require(hidden % 32 == 0, _OP, f"hidden is {hidden}: it must be a multiple of 32")
    rows = num_max_tokens_per_rank
    return SymmBuffer(
        torch.zeros(rows, hidden, dtype=torch.uint8).view(torch.float8_e4m3fn),
        torch.zeros(rows, hidden // 32),
        torch.full((rows, num_topk), -1),
        torch.zeros(rows, num_topk),
        num_experts,
        ElasticBuffer(group, rows, hidden, num_topk),
    )


def transform_weights_for_mega_moe(
    l1: ScaledMatrix, l2: ScaledMatrix
) -> tuple[ScaledMatrix, ScaledMatrix]:
    """w13 and w2 as `fp8_fp4_mega_moe` takes them: unchanged, since there is no interleaving and
    no scale transpose here (port.md R1).

    Raises:
        UsageError: shapes or scales that do not meet.
    """
    op = "transform_weights_for_mega_moe"
    gate_up, down = matrix_values(op, l1, (1, 32)), matrix_values(op, l2, (1, 32))
    experts, width, hidden = gate_up.shape
    require(width % 2 == 0, op, f"l1 has {width} rows: gate and up are equally many")
    require_shape(op, "l2 values", down, (experts, hidden, width // 2))
    return l1, l2


def fp8_fp4_mega_moe(
    y: torch.Tensor,
    l1: ScaledMatrix,
    l2: ScaledMatrix,
    sym_buffer: SymmBuffer,
    shared_l1: ScaledMatrix | None = None,
    shared_l2: ScaledMatrix | None = None,
    activation: str = "swiglu",
    activation_clamp: float = 10.0,
) -> None:
    """y [T, H] bf16, in place, for the first T tokens of the buffer.

    Args:
        l1: fp4 weights [local experts, 2I, H/2], gate rows first, with scales per row and 32
            channels; not interleaved (port.md R1).
        l2: fp4 weights [local experts, H, I/2].
        shared_l1, shared_l2: the shared expert, fp8 with 32x32 scale tiles.

    The sum of routed and shared experts is float32 and rounded once.

    Raises:
        UsageError: another activation, shapes that do not meet, one half of a shared expert.
    """
    rows, hidden = y.shape
    require(activation == "swiglu", _OP, f"activation is {activation!r}: swiglu")
    require((shared_l1 is None) == (shared_l2 is None), _OP, "shared_l1 and shared_l2 go together")
    require(rows <= len(sym_buffer.x), _OP, f"{rows} tokens, the buffer has {len(sym_buffer.x)}")
    require_shape(_OP, "y", y, (rows, sym_buffer.x.shape[1]))
    gate_up, down = matrix_values(_OP, l1, (1, 32)), matrix_values(_OP, l2, (1, 32))
    local = sym_buffer.num_experts // sym_buffer.exchange.num_ranks
    width = gate_up.shape[1] // 2
    require_shape(_OP, "l1 values", gate_up, (local, 2 * width, hidden))
    require_shape(_OP, "l2 values", down, (local, hidden, width))
    tokens = (sym_buffer.x[:rows], sym_buffer.x_sf[:rows])
    received, experts, shares, handle, _ = sym_buffer.exchange.dispatch(
        tokens,
        sym_buffer.topk_idx[:rows],
        sym_buffer.topk_weights[:rows],
        sym_buffer.num_experts,
        do_expand=True,
    )
    if not isinstance(received, tuple):
        refuse(_OP, "the exchange returned tokens without scales")
    values = matrix_values(_OP, received, (1, 32))
    out = torch.zeros(values.shape)
    for expert in range(local):
        at = experts == expert
        out[at] = _expert(values[at], gate_up[expert], down[expert], shares[at], activation_clamp)
    total, _, _ = sym_buffer.exchange.combine(out, handle)
    if shared_l1 is not None and shared_l2 is not None:
        own = matrix_values(_OP, tokens, (1, 32))
        first = matrix_values(_OP, shared_l1, (32, 32))
        second = matrix_values(_OP, shared_l2, (32, 32))
        total = total + _expert(own, first, second, None, activation_clamp)
    y.copy_(total)


def _expert(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    share: torch.Tensor | None,
    limit: float,
) -> torch.Tensor:
    """One expert on dequantised rows [n, H]; every linear's output is bf16."""
    gate, up = (x @ gate_up.t()).bfloat16().chunk(2, dim=1)
    hidden = swiglu(gate, up, limit, share, numerics=FAST)
    on_grid = matrix_values(_OP, per_token_cast(_OP, hidden, "e4m3", 32, True), (1, 32))
    return (on_grid @ down.t()).bfloat16().float()
