"""DeepGEMM's functions that this model calls, in plain torch (model.md §5.2).

Operands are (data, scales) pairs as in references.scaled_matrices; results are written into `d`
and nothing is returned, as there. Sums are float32 over dequantised values. Default granularity:
activations one scale per row and 32 channels, fp8 weights per 32x32 tile, fp4 weights per row and
32 channels (the V4.1 recipe); other recipes by `recipe_a` and `recipe_b`. `compiled_dims`,
`expected_m` and the like steer CUDA code generation and change no result.
"""

from __future__ import annotations

import torch

from references.fused_mhc import mega_mhc, tf32_hc_prenorm_gemm
from references.mega_gate import bf16_mega_gate
from references.mega_moe import (
    SymmBuffer,
    fp8_fp4_mega_moe,
    get_symm_buffer_for_mega_moe,
    transform_weights_for_mega_moe,
)
from references.mqa_logits import (
    SparseLogitsMetadata,
    fp8_fp4_mqa_logits,
    fp8_fp4_paged_mqa_logits,
    fp8_fp4_paged_sparse_mqa_logits,
    fp8_fp4_sparse_mqa_logits,
    get_mqa_logits_metadata,
    get_paged_mqa_logits_metadata,
    get_paged_sparse_mqa_logits_metadata,
    get_sparse_mqa_logits_metadata,
)
from references.operands import refuse, require, require_float, require_ids, require_shape
from references.scaled_matrices import (
    Granularity,
    ScaledMatrix,
    cast_back,
    matrix_values,
    num_channels,
    per_block_cast,
    per_token_cast,
    scale_values,
)

__all__ = [
    "SparseLogitsMetadata",
    "SymmBuffer",
    "bf16_gemm_nt",
    "bf16_mega_gate",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "fp4_gemm_nt",
    "fp8_einsum",
    "fp8_fp4_gemm_nt",
    "fp8_fp4_mega_moe",
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_fp4_paged_sparse_mqa_logits",
    "fp8_fp4_sparse_mqa_logits",
    "fp8_gemm_nt",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mqa_logits_metadata",
    "get_paged_mqa_logits_metadata",
    "get_paged_sparse_mqa_logits_metadata",
    "get_sparse_mqa_logits_metadata",
    "get_symm_buffer_for_mega_moe",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "mega_mhc",
    "per_block_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "tf32_hc_prenorm_gemm",
    "transform_sf_into_required_layout",
    "transform_weights_for_mega_moe",
]


def _default_b(op: str, b: ScaledMatrix, recipe_b: Granularity | None) -> Granularity:
    if recipe_b is not None:
        return recipe_b
    num_channels(op, b[0])
    return (32, 32) if b[0].dtype == torch.float8_e4m3fn else (1, 32)


def _require_destination(op: str, d: torch.Tensor, shape: tuple[int, ...]) -> None:
    require_shape(op, "d", d, shape)
    require(
        d.dtype in (torch.bfloat16, torch.float32), op, f"d has dtype {d.dtype}: bfloat16, float32"
    )


def _require_same_k(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    require(a.shape[-1] == b.shape[-1], op, f"a has K={a.shape[-1]} but b has {b.shape[-1]}")


def fp8_fp4_gemm_nt(
    a: ScaledMatrix,
    b: ScaledMatrix,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    compiled_dims: str = "nk",  # noqa: ARG001 - CUDA code generation only
    alpha: float = 1.0,
) -> None:
    """d [M, N] = c + alpha * a [M, K] b [N, K]^T, in place.

    Raises:
        UsageError: shapes or scales that do not meet, wrong dtypes.
    """
    op = "fp8_fp4_gemm_nt"
    left = matrix_values(op, a, recipe_a or (1, 32))
    right = matrix_values(op, b, _default_b(op, b, recipe_b))
    _require_same_k(op, left, right)
    _require_destination(op, d, (left.shape[0], right.shape[0]))
    product = alpha * (left @ right.t())
    if c is not None:
        require_float(op, "c", c)
        require_shape(op, "c", c, tuple(d.shape))
        product += c.float()
    d.copy_(product)


fp8_gemm_nt = fp8_fp4_gemm_nt
fp4_gemm_nt = fp8_fp4_gemm_nt


def _row_groups(op: str, grouped_layout: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """Group of each row, -1 for padding; from ids [M] or from psum ends [G]."""
    require_ids(op, "grouped_layout", grouped_layout, ndim=1)
    if grouped_layout.shape[0] == rows:
        ids = grouped_layout.long()
        low, high = (int(v) for v in torch.aminmax(ids)) if rows else (0, 0)
        require(low >= -1 and high < groups, op, f"group ids reach from {low} to {high}")
        return ids
    return refuse(op, f"grouped_layout has {grouped_layout.shape[0]} entries, a has {rows} rows")


def _psum_groups(op: str, ends: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    require_ids(op, "grouped_layout", ends, ndim=1)
    require_shape(op, "grouped_layout", ends, (groups,))
    steps = torch.diff(ends.long(), prepend=ends.new_zeros(1).long())
    require(bool((steps >= 0).all()), op, "psum ends must not fall")
    require(int(ends[-1]) <= rows, op, f"psum ends reach {int(ends[-1])}, a has {rows} rows")
    ids = torch.full((rows,), -1)
    ids[: int(ends[-1])] = torch.repeat_interleave(torch.arange(groups), steps)
    return ids


def _grouped_product(
    op: str, left: torch.Tensor, right: torch.Tensor, d: torch.Tensor, ids: torch.Tensor
) -> None:
    _require_same_k(op, left, right)
    _require_destination(op, d, (left.shape[0], right.shape[1]))
    for group in range(right.shape[0]):  # padding rows (-1) keep what they held
        rows = ids == group
        if bool(rows.any()):
            d[rows] = (left[rows] @ right[group].t()).to(d.dtype)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: ScaledMatrix,
    b: ScaledMatrix,
    d: torch.Tensor,
    grouped_layout: torch.Tensor,
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
    use_psum_layout: bool = False,
) -> None:
    """d [M, N]: row i of a [M, K] times b [G, N, K] of its group; padding rows are left alone.

    Args:
        grouped_layout: group id per row [M], -1 for padding; with `use_psum_layout` the row at
            which each group ends [G].

    Raises:
        UsageError: shapes that do not meet, a group outside b, wrong dtypes.
    """
    op = "m_grouped_fp8_fp4_gemm_nt_contiguous"
    left = matrix_values(op, a, recipe_a or (1, 32))
    right = matrix_values(op, b, _default_b(op, b, recipe_b))
    groups = _psum_groups if use_psum_layout else _row_groups
    ids = groups(op, grouped_layout, left.shape[0], right.shape[0])
    _grouped_product(op, left, right, d, ids)


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: ScaledMatrix,
    b: ScaledMatrix,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int = 0,  # noqa: ARG001 - a hint to CUDA's scheduler
    recipe_a: Granularity | None = None,
    recipe_b: Granularity | None = None,
) -> None:
    """d [G, M, N]: the first masked_m[g] rows of a [G, M, K] times b [G, N, K]; the rest is kept.

    Raises:
        UsageError: shapes that do not meet, masked_m above M, wrong dtypes.
    """
    op = "m_grouped_fp8_fp4_gemm_nt_masked"
    left = matrix_values(op, a, recipe_a or (1, 32))
    right = matrix_values(op, b, _default_b(op, b, recipe_b))
    _masked_product(op, left, right, d, masked_m)


def _masked_product(
    op: str, left: torch.Tensor, right: torch.Tensor, d: torch.Tensor, masked_m: torch.Tensor
) -> None:
    groups, rows, _ = left.shape
    _require_same_k(op, left, right)
    require(right.shape[0] == groups, op, f"a has {groups} groups, b has {right.shape[0]}")
    _require_destination(op, d, (groups, rows, right.shape[1]))
    require_ids(op, "masked_m", masked_m, ndim=1)
    require_shape(op, "masked_m", masked_m, (groups,))
    for group, count in enumerate(masked_m.tolist()):
        require(0 <= count <= rows, op, f"masked_m[{group}] is {count}, a has {rows} rows a group")
        d[group, :count] = (left[group, :count] @ right[group].t()).to(d.dtype)


def bf16_gemm_nt(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None
) -> None:
    """d [M, N] = c + a [M, K] b [N, K]^T of bf16 operands, float32 sums, in place.

    Raises:
        UsageError: shapes that do not meet, operands that are not bf16.
    """
    op = "bf16_gemm_nt"
    _require_bf16(op, a, b, ndim=2)
    _require_same_k(op, a, b)
    _require_destination(op, d, (a.shape[0], b.shape[0]))
    product = a.float() @ b.float().t()
    if c is not None:
        require_shape(op, "c", c, tuple(d.shape))
        product += c.float()
    d.copy_(product)


def _require_bf16(op: str, a: torch.Tensor, b: torch.Tensor, ndim: int) -> None:
    require_float(op, "a", a, ndim=ndim)
    require(a.dtype == b.dtype == torch.bfloat16, op, f"a and b are {a.dtype}, {b.dtype}: bfloat16")


def m_grouped_bf16_gemm_nt_contiguous(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, grouped_layout: torch.Tensor
) -> None:
    """As the fp8 form, of bf16 a [M, K] and b [G, N, K]."""
    op = "m_grouped_bf16_gemm_nt_contiguous"
    _require_bf16(op, a, b, ndim=2)
    ids = _row_groups(op, grouped_layout, a.shape[0], b.shape[0])
    _grouped_product(op, a.float(), b.float(), d, ids)


def m_grouped_bf16_gemm_nt_masked(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int = 0,  # noqa: ARG001 - a hint to CUDA's scheduler
) -> None:
    """As the fp8 form, of bf16 a [G, M, K] and b [G, N, K]."""
    op = "m_grouped_bf16_gemm_nt_masked"
    _require_bf16(op, a, b, ndim=3)
    _masked_product(op, a.float(), b.float(), d, masked_m)


def fp8_einsum(
    expression: str,
    x: ScaledMatrix,
    y: ScaledMatrix,
    out: torch.Tensor,
    recipe_x: Granularity | None = None,
    recipe_y: Granularity | None = None,
) -> None:
    """out [b, h, d] = sum over r of x [b, h, r] y [h, d, r]: the grouped wo_a, in place.

    Raises:
        UsageError: another expression, shapes that do not meet, wrong dtypes.
    """
    op = "fp8_einsum"
    require(expression == "bhr,hdr->bhd", op, f"expression is {expression!r}: 'bhr,hdr->bhd'")
    left = matrix_values(op, x, recipe_x or (1, 32))
    right = matrix_values(op, y, _default_b(op, y, recipe_y))
    _require_same_k(op, left, right)
    require(left.shape[1] == right.shape[0], op, f"x has {left.shape[1]} groups, y {len(right)}")
    _require_destination(op, out, (left.shape[0], left.shape[1], right.shape[1]))
    out.copy_(torch.einsum("bhr,hdr->bhd", left, right))


def per_token_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool = True, gran_k: int = 32
) -> ScaledMatrix:
    """fp8 data [M, K] and float32 scales [M, ceil(K/gran_k)]; amax is at least 1e-4."""
    return per_token_cast("per_token_cast_to_fp8", x, "e4m3", gran_k, use_ue8m0)


def per_token_cast_to_fp4(
    x: torch.Tensor, use_ue8m0: bool = True, gran_k: int = 32
) -> ScaledMatrix:
    """Packed fp4 data [M, K/2] in int8 and float32 scales; amax is at least 6 * 2^-126."""
    return per_token_cast("per_token_cast_to_fp4", x, "e2m1", gran_k, use_ue8m0)


def per_block_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool = True, gran: int = 32) -> ScaledMatrix:
    """fp8 data [N, K] and float32 scales per gran x gran tile."""
    return per_block_cast("per_block_cast_to_fp8", x, gran, use_ue8m0)


def cast_back_from_fp8(matrix: ScaledMatrix, granularity: Granularity = (1, 32)) -> torch.Tensor:
    """bf16 values of fp8 data with scales."""
    return cast_back("cast_back_from_fp8", matrix, granularity)


def cast_back_from_fp4(matrix: ScaledMatrix, granularity: Granularity = (1, 32)) -> torch.Tensor:
    """bf16 values of packed fp4 data with scales."""
    return cast_back("cast_back_from_fp4", matrix, granularity)


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: Granularity,
    num_groups: int | None = None,
) -> torch.Tensor:
    """Scales [(G,) ceil(mn / gran_mn), ceil(k / gran_k)] as these functions take them: row-major.

    The TMA-aligned and packed layouts the original makes do not exist here (port.md R1).

    Args:
        recipe: (gran_mn, gran_k).

    Raises:
        UsageError: another shape, or scales that are neither float32 nor ue8m0 bytes.
    """
    op = "transform_sf_into_required_layout"
    gran_mn, gran_k = recipe
    shape: tuple[int, ...] = (-(-mn // gran_mn), -(-k // gran_k))
    require_shape(op, "sf", sf, shape if num_groups is None else (num_groups, *shape))
    scale_values(op, sf)
    return sf.contiguous()


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: torch.Tensor) -> torch.Tensor:
    """Power-of-two scales [(G,) M, K] as these functions take them: row-major, not packed.

    Raises:
        UsageError: neither float32 nor ue8m0 bytes, or a scale that ue8m0 cannot hold.
    """
    op = "get_mn_major_tma_aligned_packed_ue8m0_tensor"
    values = scale_values(op, sf)
    mantissa = torch.frexp(values).mantissa
    require(bool((mantissa == 0.5).all()), op, "a scale is no positive power of two")
    return sf.contiguous()
