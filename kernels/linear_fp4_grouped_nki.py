"""Expert linears with packed fp4 weights: rows sorted by expert, each against its expert's weight.

Dimensions:
    T rows, any number; E experts on this rank, any; K input features, a multiple of 32, <= 16384;
    N output features, any. Kp = K padded to 128, Np = N padded to 2 (prepared weight).

Layouts: x [T, K] bf16 row-major; codes uint8 [E, Kp, Np/2], two fp4 codes a byte (n and n + Np/2,
weight_layout.py); scale bf16 [E, Kp/32, Np]; y [T, Np] bf16.
    pair_expert int32 [1, P]: for each (token block, expert with rows in it), the expert, block by
    block; row_pair fp32 [T, 1]: which pair of its block a row belongs to.
Accumulation: fp32 in PSUM over all of K, one rounding to bf16. Activations (fp8, per 32) and
weights are dequantised to bf16 first, which is exact.
Expected error: fp32 summation plus one bf16 rounding.

Experts are data, not shape: a NEFF is specialised on (T, pairs a block) only. Experts without rows
have no pair and cost nothing; a dense fp4 linear is one expert.

Tiling (both cores at LNC=2: each takes half of the byte columns of N):
    for <= 512 rows at a time:
        quantise, dequantise and transpose the rows                    (fp8_activation.py)
        for each pair: load its expert id; for <= 256 byte columns (512 features) at a time:
            DMA codes [128, K/128, bytes] at expert * stride; scales bf16 [K/32, 2, bytes]
            GpSimd and VectorE: fp4 -> fp8 bits, one mask for the first code, 3 instructions for the
            second; VectorE makes one of the four
            for each 128 channels: PE copies 4 scale rows down 128 partitions (0/1 matmul, exact)
            VectorE: fp8 * scale (PSUM) -> bf16
            for 128 rows: K/128 matmuls; the pair's rows are copied under a predicate
All rows of a block meet every expert of the block: the matmul costs the same, no gather or scatter
is needed, and another expert's result is never mixed in, not even as 0 * inf. VectorE is
the bound (half an operation a weight of unpacking, one of scaling), not the extra columns of PE.

Refuses: numerics other than trn2's, x that is not bf16, K > 16384, weights not "fp4", scales of
2^122 or more. Values of x must be finite.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from harness.core.weights import QuantisedWeight
from kernels.channel_tiles import contract
from kernels.contract import (
    refuse,
    require,
    require_dtype,
    require_ids,
    require_limit,
    require_trn2,
    require_weight,
)
from kernels.fp8_activation import BLOCK, activations_by_channel
from kernels.launch import launch, nisa, nki, nl
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div, core_share, largest_fold
from kernels.weight_layout import prepared_fp4

__all__ = ["linear_fp4_grouped", "linear_fp4_grouped_kernel"]

_MAX_K = 16384
_BLOCK_TOKENS = 512
_CHUNK_ELEMENTS = 24576
_SCALES_PER_TILE = PARTITIONS // BLOCK


def _replication_mask(num_scales: int, num_k_tiles: int) -> Any:
    """bf16 [K/32 (<= 128), tiles, 128]: 1 where scale row r serves partition p of k tile i."""
    mask_sb = nl.ndarray((num_scales, num_k_tiles, PARTITIONS), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=mask_sb, value=1.0)
    # r - 4 i - q with q = p // 32 is zero exactly where the row serves the partition.
    nisa.affine_select(
        dst=mask_sb,
        pattern=[[-_SCALES_PER_TILE, num_k_tiles], [-1, _SCALES_PER_TILE], [0, BLOCK]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=mask_sb,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    return mask_sb


def _unpacked(codes_hbm: Any, expert: Any, column: int, columns: int) -> Any:
    """float8_e4m3 [128, K/128, 2, columns]: 2^-6 of the fp4 values of byte columns."""
    num_k_tiles = codes_hbm.shape[1] // PARTITIONS
    width = codes_hbm.shape[2]
    packed_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=packed_sb,
        src=codes_hbm.ap(
            pattern=[[width, PARTITIONS], [width * PARTITIONS, num_k_tiles], [1, columns]],
            offset=column,
            scalar_offset=expert,
            indirect_dim=0,
        ),
    )
    fp8_sb = nl.ndarray((PARTITIONS, num_k_tiles, 2, columns), dtype=nl.uint8, buffer=nl.sbuf)
    high_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.uint8, buffer=nl.sbuf)
    low_sb = nl.ndarray((PARTITIONS, num_k_tiles, columns), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=fp8_sb[:, :, 0, :],
        data=packed_sb,
        op0=nl.bitwise_and,
        operand0=0b10011100,
        engine=nisa.engine.gpsimd,
    )
    nisa.tensor_scalar(
        dst=high_sb,
        data=packed_sb,
        op0=nl.bitwise_and,
        operand0=0b00100011,
        op1=nl.left_shift,
        operand1=2,
    )
    nisa.tensor_scalar(
        dst=low_sb,
        data=packed_sb,
        op0=nl.bitwise_and,
        operand0=0b01000000,
        op1=nl.right_shift,
        operand1=2,
        engine=nisa.engine.gpsimd,
    )
    nisa.tensor_tensor(
        dst=fp8_sb[:, :, 1, :],
        data1=high_sb,
        data2=low_sb,
        op=nl.bitwise_or,
        engine=nisa.engine.gpsimd,
    )
    return fp8_sb.view(nl.float8_e4m3)


def _scale_rows(
    scale_hbm: Any, expert: Any, first: int, rows: int, column: int, columns: int
) -> Any:
    """bf16 powers of two [rows, 2, columns] of scale rows first..first+rows."""
    width = scale_hbm.shape[2]
    scale_sb = nl.ndarray((rows, 2, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=scale_sb,
        src=scale_hbm.ap(
            pattern=[[width, rows], [width // 2, 2], [1, columns]],
            offset=first * width + column,
            scalar_offset=expert,
            indirect_dim=0,
        ),
    )
    return scale_sb


def _weight_chunk(
    codes_hbm: Any, scale_hbm: Any, expert: Any, mask_sb: Any, column: int, columns: int
) -> Any:
    """Dequantised bf16 [128, K/128, 2, columns] of an expert's byte columns; exact."""
    num_k_tiles = codes_hbm.shape[1] // PARTITIONS
    num_scales = scale_hbm.shape[1]
    fp8_sb = _unpacked(codes_hbm, expert, column, columns)
    weight_sb = nl.ndarray((PARTITIONS, num_k_tiles, 2, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    tiles_per_bank = max(1, PSUM_BANK_FP32 // (2 * columns))
    tiles_per_mask = PARTITIONS // _SCALES_PER_TILE
    for mask_tile in range(0, num_k_tiles, tiles_per_mask):
        first = mask_tile * _SCALES_PER_TILE
        rows = min(PARTITIONS, num_scales - first)
        scale_sb = _scale_rows(scale_hbm, expert, first, rows, column, columns)
        end = min(mask_tile + tiles_per_mask, num_k_tiles)
        for tile in range(mask_tile, end, tiles_per_bank):
            tiles = min(tiles_per_bank, end - tile)
            scale_psum = nl.ndarray(
                (PARTITIONS, tiles, 2, columns), dtype=nl.float32, buffer=nl.psum
            )
            for i in range(tiles):
                nisa.nc_matmul(
                    dst=scale_psum[:, i, :, :],
                    stationary=mask_sb[0:rows, tile + i - mask_tile, :],
                    moving=scale_sb,
                    accumulate=False,
                )
            nisa.tensor_tensor(
                dst=weight_sb[:, tile : tile + tiles, :, :],
                data1=fp8_sb[:, tile : tile + tiles, :, :],
                data2=scale_psum,
                op=nl.multiply,
            )
    return weight_sb


def _pair_masks(row_pair_hbm: Any, token: int, tokens: int, num_pairs: int) -> Any:
    """uint8 [128, blocks of 128 rows, pairs]: 1 where the row belongs to the pair."""
    num_tiles = ceil_div(tokens, PARTITIONS)
    rows = min(tokens, PARTITIONS)
    pair_sb = nl.ndarray((rows, num_tiles), dtype=nl.float32, buffer=nl.sbuf)
    mask_sb = nl.ndarray((rows, num_tiles, num_pairs), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=pair_sb, value=-1.0)
    for tile in range(num_tiles):
        first = token + tile * PARTITIONS
        here = min(PARTITIONS, token + tokens - first)
        nisa.dma_copy(
            dst=pair_sb[0:here, tile : tile + 1], src=row_pair_hbm[first : first + here, :]
        )
    for pair in range(num_pairs):
        nisa.tensor_scalar(
            dst=mask_sb[:, :, pair], data=pair_sb, op0=nl.equal, operand0=float(pair)
        )
    return mask_sb


@nki.jit
def linear_fp4_grouped_kernel(
    x_hbm: Any,
    codes_hbm: Any,
    scale_hbm: Any,
    pair_expert_hbm: Any,
    row_pair_hbm: Any,
    pairs_of_block: Any,
    fold: int,
) -> Any:
    """x [T, K] bf16, prepared weights, pairs -> y [T, Np] bf16.

    pairs_of_block: number of pairs of each block of 512 rows, a tuple.
    """
    num_tokens = x_hbm.shape[0]
    num_k_tiles = codes_hbm.shape[1] // PARTITIONS
    width = codes_hbm.shape[2]
    y_hbm = nl.ndarray((num_tokens, 2 * width), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    y_halves = y_hbm.reshape((num_tokens, 2, width))
    num_pairs = pair_expert_hbm.shape[1]
    expert_sb = nl.ndarray((1, num_pairs), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=expert_sb, src=pair_expert_hbm)
    mask_sb = _replication_mask(
        min(PARTITIONS, scale_hbm.shape[1]),
        min(num_k_tiles, PARTITIONS // _SCALES_PER_TILE),
    )
    first_column, num_columns = core_share(width)
    end_column = first_column + num_columns
    chunk = min(PSUM_BANK_FP32 // 2, max(16, _CHUNK_ELEMENTS // num_k_tiles // 2))
    first_pair = 0
    for block in range(len(pairs_of_block)):
        token = block * _BLOCK_TOKENS
        tokens = min(_BLOCK_TOKENS, num_tokens - token)
        xt_sb = activations_by_channel(x_hbm, token, tokens, num_k_tiles, fold)
        row_masks_sb = _pair_masks(row_pair_hbm, token, tokens, pairs_of_block[block])
        num_tiles = ceil_div(tokens, PARTITIONS)
        rows = min(tokens, PARTITIONS)
        for column in range(first_column, end_column, chunk):
            columns = min(chunk, end_column - column)
            y_sb = nl.ndarray((rows, num_tiles, 2, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            for pair in range(pairs_of_block[block]):
                index = first_pair + pair
                weight_sb = _weight_chunk(
                    codes_hbm,
                    scale_hbm,
                    expert_sb[0:1, index : index + 1],
                    mask_sb,
                    column,
                    columns,
                )
                for tile in range(num_tiles):
                    here = min(PARTITIONS, tokens - tile * PARTITIONS)
                    y_psum = _multiply_rows(
                        xt_sb[:, :, tile * PARTITIONS : tile * PARTITIONS + here, :], weight_sb
                    )
                    _keep_rows(
                        y_psum,
                        row_masks_sb[0:here, tile, pair : pair + 1],
                        y_sb[0:here, tile, :, :],
                        pair,
                    )
            for tile in range(num_tiles):
                begin = token + tile * PARTITIONS
                here = min(PARTITIONS, tokens - tile * PARTITIONS)
                nisa.dma_copy(
                    dst=y_halves[begin : begin + here, :, column : column + columns],
                    src=y_sb[0:here, tile, :, :],
                )
        first_pair += pairs_of_block[block]
    return y_hbm


def _multiply_rows(xt_sb: Any, weight_sb: Any) -> Any:
    """PSUM fp32 [rows, 2, columns]: every row times this weight."""
    rows, columns = xt_sb.shape[2], weight_sb.shape[3]
    y_psum = nl.ndarray((rows, 2, columns), dtype=nl.float32, buffer=nl.psum)
    contract(xt_sb, weight_sb, y_psum)
    return y_psum


def _keep_rows(y_psum: Any, row_mask: Any, y_sb: Any, pair: int) -> None:
    """Round y into the rows of the mask [rows, 1]; the first pair fills all rows.

    What it leaves in rows of other pairs is replaced when their pair comes.
    """
    if pair == 0:
        nisa.tensor_copy(dst=y_sb, src=y_psum, engine=nisa.engine.scalar)
        return
    rows, columns = y_sb.shape[0], y_sb.shape[2]
    rounded_sb = nl.ndarray((rows, 2, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded_sb, src=y_psum, engine=nisa.engine.scalar)
    nisa.tensor_copy_predicated(
        dst=y_sb,
        src=rounded_sb,
        predicate=row_mask.expand_dim(1).broadcast(1, 2).broadcast(2, columns),
    )


def _pairs(sizes: list[int], num_tokens: int) -> tuple[list[int], list[float], tuple[int, ...]]:
    """(experts of all pairs, pair of each row within its block, pairs of each block)."""
    experts: list[int] = []
    row_pair: list[float] = []
    per_block: list[int] = []
    ends = torch.tensor(sizes).cumsum(0).tolist()
    for block in range(0, num_tokens, _BLOCK_TOKENS):
        block_end = min(block + _BLOCK_TOKENS, num_tokens)
        pairs = 0
        for expert, (size, end) in enumerate(zip(sizes, ends, strict=True)):
            rows = min(end, block_end) - max(end - size, block)
            if rows > 0:
                experts.append(expert)
                row_pair.extend([float(pairs)] * rows)
                pairs += 1
        per_block.append(pairs)
    return experts, row_pair, tuple(per_block)


def linear_fp4_grouped(
    x: torch.Tensor,
    weight: QuantisedWeight,
    group_sizes: torch.Tensor,
    *,
    numerics: Numerics,
) -> torch.Tensor:
    """y [T, N] bf16: group_sizes[e] consecutive rows of x [T, K] bf16 against weight [e] [N, K].

    Raises:
        KernelError: UNSUPPORTED numerics, dtype, K > 16384 or scale bytes.
        UsageError: group sizes negative or not adding up to T, shapes or layout that do not meet.
    """
    op = "linear_fp4_grouped"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    if x.ndim != 2:
        refuse(op, f"x has shape {tuple(x.shape)}: it must be [T, K]")
    require_weight(op, weight, "fp4", x.shape[1])
    require(weight.codes.ndim == 3, op, "weight codes must be [E, N, K/2]")
    require_limit(op, "K", x.shape[1], _MAX_K)
    num_tokens = x.shape[0]
    require_ids(op, "group_sizes", group_sizes, (weight.codes.shape[0],))
    sizes = group_sizes.tolist()
    require(
        sum(sizes) == num_tokens and min(sizes, default=0) >= 0,
        op,
        f"group sizes {sizes} must be >= 0 and add up to the {num_tokens} rows",
    )
    if num_tokens == 0 or weight.out_features == 0:
        return x.new_empty((num_tokens, weight.out_features))
    prepared = prepared_fp4(weight)
    experts, row_pair, pairs_of_block = _pairs(sizes, num_tokens)
    fold = largest_fold(x.shape[1], PARTITIONS // min(num_tokens, PARTITIONS), PARTITIONS)
    y = launch(
        linear_fp4_grouped_kernel,
        x,
        prepared.codes,
        prepared.scale,
        torch.tensor([experts], dtype=torch.int32),
        torch.tensor(row_pair).unsqueeze(1),
        pairs_of_block,
        fold,
    )
    return y[:, : prepared.out_features].contiguous()
