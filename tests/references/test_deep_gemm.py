"""The deep_gemm face against dense float64 products of what its operands mean."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from harness.core.errors import UsageError
from references import deep_gemm
from tests.references.draws import normal

F64 = npt.NDArray[np.float64]


def dense(pair: tuple[torch.Tensor, torch.Tensor], rows: int, channels: int) -> F64:
    data, scale = pair
    if data.dtype == torch.float8_e4m3fn:
        values = data.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    else:
        packed = data.view(torch.uint8).numpy()
        nibbles = np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
        values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    factors = np.repeat(scale.double().numpy(), channels, axis=-1)[..., : values.shape[-1]]
    return values * np.repeat(factors, rows, axis=-2)[..., : values.shape[-2], :]


def fp4_experts(seed: int, groups: int, rows: int, columns: int) -> Any:
    pairs = [
        deep_gemm.per_token_cast_to_fp4(normal(seed + g, rows, columns)) for g in range(groups)
    ]
    return torch.stack([data for data, _ in pairs]), torch.stack([scale for _, scale in pairs])


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_dense_gemm_multiplies_dequantised_values_and_adds_c(
    kind: str, out_dtype: torch.dtype
) -> None:
    a = deep_gemm.per_token_cast_to_fp8(normal(1, 5, 96))
    if kind == "fp8":
        b, tile = deep_gemm.per_block_cast_to_fp8(normal(2, 40, 96)), 32
    else:
        b, tile = deep_gemm.per_token_cast_to_fp4(normal(2, 40, 96)), 1
    c, d = normal(3, 5, 40, dtype=torch.float32), torch.full((5, 40), torch.nan, dtype=out_dtype)
    assert deep_gemm.fp8_fp4_gemm_nt(a, b, d, c=c) is None
    golden = c.double().numpy() + dense(a, 1, 32) @ dense(b, tile, 32).T
    rtol = 2**-8 if out_dtype == torch.bfloat16 else 1e-5
    np.testing.assert_allclose(d.double().numpy(), golden, rtol=rtol, atol=1e-4)


def test_scales_may_be_ue8m0_bytes() -> None:
    data, scale = deep_gemm.per_token_cast_to_fp8(normal(1, 5, 64))
    b = deep_gemm.per_block_cast_to_fp8(normal(2, 32, 64))
    as_bytes = (torch.log2(scale).round() + 127).to(torch.uint8)
    outs = [torch.empty(5, 32) for _ in range(3)]
    for out, sf in zip(outs, (scale, as_bytes, as_bytes.view(torch.float8_e8m0fnu)), strict=True):
        deep_gemm.fp8_gemm_nt((data, sf), b, out)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("psum", [False, True])
def test_contiguous_groups_meet_their_expert_and_padding_rows_are_left_alone(psum: bool) -> None:
    a = deep_gemm.per_token_cast_to_fp8(normal(4, 7, 64))
    b = fp4_experts(5, 3, 8, 64)
    d = torch.full((7, 8), 7.0, dtype=torch.bfloat16)
    layout = torch.tensor([2, 2, 5]) if psum else torch.tensor([0, 0, 2, 2, 2, -1, -1])
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, layout.int(), use_psum_layout=psum)
    left, right = dense(a, 1, 32), dense(b, 1, 32)
    golden = np.stack([right[g] @ left[row] for row, g in enumerate([0, 0, 2, 2, 2])])
    np.testing.assert_allclose(d[:5].double().numpy(), golden, rtol=2**-8, atol=1e-3)
    assert bool((d[5:] == 7).all())


def test_masked_groups_compute_only_their_first_rows() -> None:
    rows = [deep_gemm.per_token_cast_to_fp8(normal(6 + g, 4, 64)) for g in range(2)]
    a = (torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows]))
    b = fp4_experts(8, 2, 8, 64)
    d = torch.full((2, 4, 8), 7.0, dtype=torch.bfloat16)
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked(a, b, d, torch.tensor([3, 0]), 2)
    golden = dense(a, 1, 32)[0, :3] @ dense(b, 1, 32)[0].T
    np.testing.assert_allclose(d[0, :3].double().numpy(), golden, rtol=2**-8, atol=1e-3)
    assert bool((d[0, 3:] == 7).all())
    assert bool((d[1] == 7).all())


def test_bf16_gemms() -> None:
    a, b = normal(9, 6, 40), normal(10, 3, 5, 40)
    d = torch.zeros(6, 5)
    deep_gemm.bf16_gemm_nt(a, b[1], d, c=torch.ones(6, 5))
    product = a.double() @ b.double().transpose(1, 2)
    np.testing.assert_allclose(d, 1 + product[1], rtol=1e-5, atol=1e-5)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, torch.tensor([2, 0, 0, 1, 1, 2]))
    golden = torch.stack([product[g, row] for row, g in enumerate([2, 0, 0, 1, 1, 2])])
    np.testing.assert_allclose(d, golden, rtol=1e-5, atol=1e-5)
    masked = torch.zeros(3, 2, 5)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a.reshape(3, 2, 40), b, masked, torch.tensor([2, 1, 0]))
    np.testing.assert_allclose(masked[0], product[0, :2], rtol=1e-5, atol=1e-5)
    assert not bool(masked[1, 1].any())
    assert not bool(masked[2].any())


def test_einsum_is_the_grouped_output_projection() -> None:
    x = deep_gemm.per_token_cast_to_fp8(normal(11, 6, 64))
    x = (x[0].reshape(3, 2, 64), x[1].reshape(3, 2, 2))
    y = deep_gemm.per_block_cast_to_fp8(normal(12, 64, 64))
    y = (y[0].reshape(2, 32, 64), y[1].reshape(2, 1, 2))
    out = torch.zeros(3, 2, 32, dtype=torch.bfloat16)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", x, y, out)
    golden = np.einsum("bhr,hdr->bhd", dense(x, 1, 32), dense(y, 32, 32))
    np.testing.assert_allclose(out.double().numpy(), golden, rtol=2**-8, atol=1e-3)


def test_casts_come_back_within_half_a_step_and_zero_rows_stay_zero() -> None:
    x = normal(13, 4, 64)
    x[2] = 0
    for pair, back, step in (
        (deep_gemm.per_token_cast_to_fp8(x), deep_gemm.cast_back_from_fp8, 2.0**-4),
        (deep_gemm.per_token_cast_to_fp4(x), deep_gemm.cast_back_from_fp4, 0.25),
    ):
        values = back(pair)
        assert values.dtype == torch.bfloat16
        amax = x.float().abs().reshape(4, 2, 32).amax(-1).repeat_interleave(32, dim=1)
        assert bool(((values.float() - x.float()).abs() <= step * amax).all())
        assert not bool(values[2].any())


def test_hc_prenorm_splits_add_up() -> None:
    a, b = normal(14, 5, 64), normal(15, 24, 64, dtype=torch.float32)
    whole, square = torch.zeros(5, 24), torch.zeros(5)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, whole, square)
    np.testing.assert_allclose(whole, a.double() @ b.double().t(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(square, a.double().square().sum(1), rtol=1e-6)
    parts, squares = torch.zeros(4, 5, 24), torch.zeros(4, 5)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, parts, squares, num_splits=4)
    np.testing.assert_allclose(parts.sum(0), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(squares.sum(0), square, rtol=1e-5)
    assert not torch.equal(parts[0], whole)


@pytest.mark.parametrize("shifted", [True, False])
def test_mega_mhc_ends_one_sublayer_and_starts_the_next(shifted: bool) -> None:
    x, residual = normal(16, 3, 32), normal(17, 3, 4, 32)
    post, comb = normal(18, 3, 4, dtype=torch.float32), normal(19, 3, 4, 4, dtype=torch.float32)
    fn, base = normal(20, 24, 128).float() * 0.1, normal(21, 24).float()
    previous = normal(22, 3, 4, 1, dtype=torch.float32) if shifted else None
    out = torch.zeros(3, 4, 32, dtype=torch.bfloat16)
    pre, new_post = torch.zeros(3, 4, 1), torch.zeros(3, 4, 1)
    new_comb, y = torch.zeros(3, 4, 4), torch.zeros(3, 32, dtype=torch.bfloat16)
    weight = normal(23, 32)
    deep_gemm.mega_mhc(
        x, residual, previous, post.unsqueeze(-1), comb, fn, torch.ones(3), base, 1e-20, 1e-6, 20,
        weight, 1e-20, out, pre, new_post, new_comb, y,
    )  # fmt: skip
    streams = np.einsum("tjk,tjd->tkd", comb.double(), residual.double())
    streams += post.double().numpy()[:, :, None] * x.double().numpy()[:, None]
    np.testing.assert_allclose(out.double().numpy(), streams, rtol=2**-8, atol=1e-6)
    flat = out.double().reshape(3, -1).numpy()
    z = flat @ fn.double().numpy().T / np.sqrt((flat**2).mean(1, keepdims=True)) + base.numpy()
    own = 1 / (1 + np.exp(-z[:, :4])) + 1e-6
    np.testing.assert_allclose(pre[..., 0], own, rtol=1e-5)
    np.testing.assert_allclose(new_post[..., 0], 2 / (1 + np.exp(-z[:, 4:8])), rtol=1e-5)
    np.testing.assert_allclose(new_comb.sum(1), 1, atol=1e-4)
    weights = previous[..., 0].double().numpy() if previous is not None else own
    collapsed = np.einsum("tj,tjd->td", weights, out.double().numpy())
    rms = np.sqrt((collapsed**2).mean(1, keepdims=True))
    golden = collapsed / rms * weight.double().numpy()
    np.testing.assert_allclose(y.double().numpy(), golden, rtol=2**-6, atol=2**-7)


def test_mega_gate_switches_the_bias_of_image_tokens_and_renames_experts() -> None:
    x, weight = normal(24, 6, 32), normal(25, 8, 32)
    text, image = torch.zeros(8), torch.full((8,), -10.0)
    image[3] = image[5] = 10.0
    mask = torch.tensor([False, True, False, False, True, False])
    ids, weights = deep_gemm.bf16_mega_gate(x, weight, 2, 1.5, bias=text)
    scores = np.sqrt(np.log1p(np.exp(x.double().numpy() @ weight.double().numpy().T)))
    np.testing.assert_array_equal(ids.numpy(), np.argsort(-scores, axis=1)[:, :2])
    np.testing.assert_allclose(weights.sum(1), 1.5, rtol=1e-6)
    mixed, _ = deep_gemm.bf16_mega_gate(
        x, weight, 2, bias=text, image_bias=image, image_token_mask=mask
    )
    assert torch.equal(mixed[~mask], ids[~mask])
    assert {tuple(sorted(row)) for row in mixed[mask].tolist()} == {(3, 5)}
    physical = torch.arange(8).flip(0)
    renamed, _ = deep_gemm.bf16_mega_gate(x, weight, 2, bias=text, to_physical_map=physical)
    assert torch.equal(renamed, 7 - ids)


def test_mega_moe_equals_every_expert_applied_by_hand() -> None:
    hidden, width, tokens = 64, 32, 5
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(None, 3, 8, 2, hidden)
    x, sf = deep_gemm.per_token_cast_to_fp8(normal(30, tokens, hidden))
    buffer.x[:tokens].copy_(x)
    buffer.x_sf[:tokens] = sf
    ids = torch.tensor([[0, 2], [2, 1], [1, -1], [-1, -1], [2, 0]])
    shares = normal(31, tokens, 2, dtype=torch.float32).abs()
    buffer.topk_idx[:tokens] = ids
    buffer.topk_weights[:tokens] = shares
    l1, l2 = fp4_experts(32, 3, 2 * width, hidden), fp4_experts(36, 3, hidden, width)
    shared = [
        deep_gemm.per_block_cast_to_fp8(normal(seed, *shape))
        for seed, shape in ((40, (2 * width, hidden)), (41, (hidden, width)))
    ]
    y = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
    deep_gemm.fp8_fp4_mega_moe(y, l1, l2, buffer, *shared, activation_clamp=3.0)
    rows, first, second = dense((x, sf), 1, 32), dense(l1, 1, 32), dense(l2, 1, 32)

    def expert(row: F64, w1: F64, w2: F64, share: float) -> F64:
        gate, up = np.split(w1 @ row, 2)
        gate, up = np.minimum(gate, 3), np.clip(up, -3, 3)
        product: F64 = w2 @ (share * gate / (1 + np.exp(-gate)) * up)
        return product

    golden = np.zeros((tokens, hidden))
    for token in range(tokens):
        golden[token] = expert(rows[token], dense(shared[0], 32, 32), dense(shared[1], 32, 32), 1.0)
        for which, share in zip(ids[token].tolist(), shares[token].tolist(), strict=True):
            if which >= 0:
                golden[token] += expert(rows[token], first[which], second[which], share)
    scale = np.abs(golden).max()
    assert np.sqrt(((y.double().numpy() - golden) ** 2).mean()) < 0.02 * scale  # fp8 of the hidden
    with pytest.raises(UsageError, match="go together"):
        deep_gemm.fp8_fp4_mega_moe(y, l1, l2, buffer, shared[0])
    with pytest.raises(UsageError, match="l2 values has shape"):
        deep_gemm.fp8_fp4_mega_moe(y, l1, l1, buffer)


def test_wrong_operands_are_refused() -> None:
    a = deep_gemm.per_token_cast_to_fp8(normal(1, 4, 64))
    b = deep_gemm.per_block_cast_to_fp8(normal(2, 32, 64))
    d = torch.zeros(4, 32)
    gemm = deep_gemm.fp8_fp4_gemm_nt
    with pytest.raises(UsageError, match="d has shape"):
        gemm(a, b, d[:3])
    with pytest.raises(UsageError, match="d has dtype"):
        gemm(a, b, d.double())
    with pytest.raises(UsageError, match="scales has shape"):
        gemm((a[0], a[1][:, :1]), b, d)
    with pytest.raises(UsageError, match="row-major and unpacked"):
        gemm((a[0], a[1].int()), b, d)
    with pytest.raises(UsageError, match="data has dtype"):
        gemm((a[0].float(), a[1]), b, d)
    with pytest.raises(UsageError, match="K=64 but b has 32"):
        gemm(a, deep_gemm.per_block_cast_to_fp8(normal(2, 32, 32)), d)
    with pytest.raises(UsageError, match="expression"):
        deep_gemm.fp8_einsum("ab,bc->ac", a, b, d)
    with pytest.raises(UsageError, match="bfloat16"):
        deep_gemm.bf16_gemm_nt(d, d, d)
    experts = fp4_experts(5, 2, 32, 64)
    grouped = deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous
    with pytest.raises(UsageError, match="group ids reach"):
        grouped(a, experts, d, torch.tensor([0, 1, 2, 0]))
    with pytest.raises(UsageError, match="3 entries, a has 4 rows"):
        grouped(a, experts, d, torch.tensor([0, 1, 1]))
    with pytest.raises(UsageError, match="must not fall"):
        grouped(a, experts, d, torch.tensor([3, 1]), use_psum_layout=True)
    masked = (a[0].reshape(2, 2, 64), a[1].reshape(2, 2, 2))
    with pytest.raises(UsageError, match=r"masked_m\[1\] is 3"):
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked(
            masked, experts, torch.zeros(2, 2, 32), torch.tensor([1, 3])
        )
    with pytest.raises(UsageError, match="multiple of 3"):
        deep_gemm.tf32_hc_prenorm_gemm(normal(1, 2, 64), normal(2, 4, 64), d, d[0], num_splits=3)
    with pytest.raises(UsageError, match="scoring_func"):
        deep_gemm.bf16_mega_gate(normal(1, 2, 8), normal(2, 4, 8), 2, scoring_func="softmax")
    with pytest.raises(UsageError, match="go together"):
        deep_gemm.bf16_mega_gate(normal(1, 2, 8), normal(2, 4, 8), 2, image_bias=torch.zeros(4))


def test_scales_are_handed_over_row_major_and_packed_ones_refused() -> None:
    scales = torch.rand(3, 4).t()
    taken = deep_gemm.transform_sf_into_required_layout(scales, 4, 96, (1, 32))
    assert taken.is_contiguous()
    assert torch.equal(taken, scales)
    grouped = torch.ones(2, 2, 3)
    assert deep_gemm.transform_sf_into_required_layout(grouped, 64, 96, (32, 32), 2).shape == (
        2,
        2,
        3,
    )
    with pytest.raises(UsageError, match="sf"):
        deep_gemm.transform_sf_into_required_layout(scales, 5, 96, (1, 32))
    with pytest.raises(UsageError, match="int32"):
        deep_gemm.transform_sf_into_required_layout(scales.int(), 4, 96, (1, 32))
