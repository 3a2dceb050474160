"""flash_mla.fused_norm_rope_attn_rope_cast against complex rotations and softmax over loops."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
import torch

from harness.core.errors import UsageError
from harness.core.numerics import QUANTISED
from references import deep_gemm, flash_mla
from references.paged_caches import pages_of
from references.quantise_fp4 import dequantise_fp4, quantise_fp4
from references.quantise_fp8 import dequantise_fp8, quantise_fp8
from tests.references.draws import normal
from tests.references.test_flash_mla import attention

D, ROPE, HEADS, GROUPS, ROWS = 64, 16, 4, 2, 3
fused = flash_mla.fused_norm_rope_attn_rope_cast
POSITIONS = torch.tensor([5, 0, 11]).int()


def angles(position: int) -> list[float]:
    return [position * 10000.0 ** (-2 * i / ROPE) for i in range(ROPE // 2)]


def table(num_positions: int = 12) -> torch.Tensor:
    turned = torch.tensor([angles(p) for p in range(num_positions)], dtype=torch.float64)
    return torch.cat((turned.cos(), turned.sin()), dim=1).float()


def rotated(row: np.ndarray, position: int, sign: int) -> np.ndarray:
    """Adjacent pairs of the last channels as complex numbers, in Python floats."""
    out = row.copy()
    for i, angle in enumerate(angles(position)):
        at = D - ROPE + 2 * i
        value = complex(row[at], row[at + 1]) * cmath.exp(1j * sign * angle)
        out[at], out[at + 1] = value.real, value.imag
    return out


def as_bf16(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).bfloat16()


def expected(
    q: torch.Tensor, keys: list[list[torch.Tensor]], sink: torch.Tensor, norm_eps: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Output [s, h, D] before its cast, and lse."""
    out, lse = np.zeros((ROWS, HEADS, D)), np.zeros((ROWS, HEADS))
    for s in range(ROWS):
        for h in range(HEADS):
            query = q[s, h].double().numpy()
            if norm_eps is not None:
                query = query / math.sqrt((query**2).mean() + norm_eps)
            turned = as_bf16(rotated(query, int(POSITIONS[s]), 1))
            row, lse[s, h] = attention(turned, keys[s], float(sink[h]), 0.2)
            out[s, h] = rotated(row, int(POSITIONS[s]), -1)
    return out, lse


def fusion(**changes: Any) -> dict[str, Any]:
    return {
        "enable_q_norm": False,
        "rms_norm_eps": 1e-6,
        "token_positions": POSITIONS,
        "is_rope_neox_style": False,
        "rope_dim": ROPE,
        "cos_sin_cache": table(),
        "n_wv_group": GROUPS,
        "num_per_channels": 32,
        "use_tma_aligned_col_major_sf": False,
        "round_sf": True,
        "use_packed_ue8m0": False,
        "sm_scale": 0.2,
        "d_v": D,
    } | changes


def values_of(data: torch.Tensor, scale: torch.Tensor) -> np.ndarray:
    assert data.dtype == torch.float8_e4m3fn
    assert data.shape == (ROWS, GROUPS, HEADS // GROUPS * D)
    assert scale.shape == (ROWS, GROUPS, HEADS // GROUPS * D // 32)
    assert bool((torch.frexp(scale).mantissa == 0.5).all()), "powers of two"
    return (data.double() * scale.repeat_interleave(32, -1)).view(ROWS, HEADS, D).numpy()


@pytest.mark.parametrize("norm", [False, True])
def test_prefill_rotates_attends_rotates_back_and_casts(norm: bool) -> None:
    q, kv = normal(1, ROWS, HEADS, D), normal(2, 9, 1, D)
    indices = torch.tensor([[[0, 8, 9]], [[-1, -2, 100]], [[1, 2, 3]]]).int()
    kept = [[0, 8], [], [1, 2]]
    sink = torch.tensor([0.5, -1.0, 2.0, -torch.inf])
    data, scale, largest, lse = fused.prefill(
        **fusion(enable_q_norm=norm), q=q, kv=kv, indices=indices, attn_sink=sink,
        topk_length=torch.tensor([3, 3, 2]).int(),
    )  # fmt: skip
    keys = [[kv[i, 0] for i in rows] for rows in kept]
    golden, golden_lse = expected(q, keys, sink, 1e-6 if norm else None)
    # e4m3 keeps 3 bits after the first: half a step is 2^-4 of a value, plus bf16 roundings.
    found = values_of(data, scale)
    np.testing.assert_allclose(found, golden, rtol=2**-4 + 2**-7, atol=2**-7)
    assert not found[1].any()
    assert bool((lse[1] == torch.inf).all())
    assert bool((largest[1] == -torch.inf).all())
    np.testing.assert_allclose(lse[::2].numpy(), golden_lse[::2], atol=2**-5)


def test_decode_reads_both_paged_caches_under_one_softmax() -> None:
    codes, factors = quantise_fp8(normal(3, 10, D), numerics=QUANTISED)
    window_rows = dequantise_fp8(codes, factors, numerics=QUANTISED)
    fp4, fp4_factors = quantise_fp4(normal(4, 6, D), 16, numerics=QUANTISED)
    extra_rows = dequantise_fp4(fp4, fp4_factors, 16, numerics=QUANTISED)
    q, sink = normal(5, ROWS, HEADS, D), torch.tensor([0.0, 1.0, -1.0, 0.5])
    indices = torch.tensor([[0, 9, -1], [4, 5, 6], [-1, -1, 2]]).int()
    extra = torch.tensor([[5, 0], [1, 3], [-1, -1]]).int()
    data, scale, lse = fused.decode(
        **fusion(), q=q, k_cache=pages_of(codes, factors, 4), indices_in_kvcache=indices,
        attn_sink=sink, topk_length=torch.tensor([3, 2, 3]),
        extra_k_cache=pages_of(fp4, fp4_factors, 2), extra_indices_in_kvcache=extra,
        extra_topk_length=torch.tensor([1, 2, 2]),
    )  # fmt: skip
    kept, kept_extra = [[0, 9], [4, 5], [2]], [[5], [1, 3], []]
    keys = [
        [window_rows[i] for i in kept[s]] + [extra_rows[i] for i in kept_extra[s]]
        for s in range(ROWS)
    ]
    golden, golden_lse = expected(q, keys, sink, None)
    np.testing.assert_allclose(values_of(data, scale), golden, rtol=2**-4 + 2**-7, atol=2**-7)
    np.testing.assert_allclose(lse.numpy(), golden_lse, atol=2**-5)


def test_its_output_feeds_the_grouped_einsum() -> None:
    q, kv = normal(1, ROWS, HEADS, D), normal(2, 9, 1, D)
    indices = torch.tensor([[[0, 8]], [[3, 4]], [[1, 2]]]).int()
    data, scale, _, _ = fused.prefill(**fusion(), q=q, kv=kv, indices=indices)
    weight = normal(6, GROUPS * 32, HEADS // GROUPS * D)
    wo_a, factors = deep_gemm.per_block_cast_to_fp8(weight)
    wo_a = wo_a.view(GROUPS, 32, -1)
    factors = factors.view(GROUPS, 1, -1)
    wo_a, factors = fused.permute_wv_proj((wo_a, factors), HEADS // GROUPS, D)
    out = torch.empty(ROWS, GROUPS, 32, dtype=torch.bfloat16)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", (data, scale), (wo_a, factors), out)
    left = values_of(data, scale).reshape(ROWS, GROUPS, -1)
    right = wo_a.double() * factors.double().repeat_interleave(32, 1).repeat_interleave(32, 2)
    np.testing.assert_allclose(
        out.double().numpy(), np.einsum("bhr,hdr->bhd", left, right.numpy()), rtol=2**-7, atol=1e-2
    )


def test_permutations_keep_plain_weights_and_check_them() -> None:
    weight, scale = deep_gemm.per_block_cast_to_fp8(normal(7, HEADS * D, 32))
    assert fused.permute_q_b_proj((weight, scale), HEADS, D) == (weight, scale)
    with pytest.raises(UsageError, match="q_b_proj has shape"):
        fused.permute_q_b_proj((weight, scale), HEADS + 1, D)
    with pytest.raises(UsageError, match="pass float8_e4m3fn"):
        fused.permute_q_b_proj((weight.float(), scale), HEADS, D)
    with pytest.raises(UsageError, match=r"\[G, out, in\]"):
        fused.permute_wv_proj((weight, scale), 2, D)
    with pytest.raises(UsageError, match="32 channels"):
        fused.permute_wv_proj((weight.view(1, HEADS * D, 32), scale), 2, D)


def test_wrong_operands_are_refused() -> None:
    q, kv = normal(1, ROWS, HEADS, D), normal(2, 9, 1, D)
    indices = torch.zeros(ROWS, 1, 2, dtype=torch.int32)
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"use_packed_ue8m0": True}, {}, "plain float32 rows"),
        ({"use_tma_aligned_col_major_sf": True}, {}, "plain float32 rows"),
        ({"is_rope_neox_style": True}, {}, "adjacent pairs"),
        ({"token_positions": POSITIONS + 1}, {}, r"within 0\.\.11"),
        ({"token_positions": POSITIONS[:2]}, {}, "token_positions has shape"),
        ({"cos_sin_cache": table()[:, :8]}, {}, "cos_sin_cache has shape"),
        ({"n_wv_group": 3}, {}, "heads is 4"),
        ({"d_v": 128}, {}, "d_v is 128"),
        ({}, {"kv": kv[..., :32]}, "kv has shape"),
        ({}, {"indices": indices[:2]}, "indices has shape"),
        ({}, {"q": q.int()}, "q has dtype"),
    ]
    for changes, operands, message in wrong:
        with pytest.raises(UsageError, match=message):
            fused.prefill(
                **fusion(**changes), **({"q": q, "kv": kv, "indices": indices} | operands)
            )
    cache = torch.zeros(2, 4, 1, 70, dtype=torch.uint8)
    with pytest.raises(UsageError, match="70 bytes an entry"):
        fused.decode(**fusion(), q=q, k_cache=cache, indices_in_kvcache=indices[:, 0])
    pages = torch.zeros(2, 4, 1, D + D // 32, dtype=torch.uint8)
    with pytest.raises(UsageError, match="needs extra_indices"):
        fused.decode(
            **fusion(), q=q, k_cache=pages, indices_in_kvcache=indices[:, 0], extra_k_cache=pages
        )
