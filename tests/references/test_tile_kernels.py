"""The tile_kernels face against loops, published figures and round trips."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from references.tile_kernels import engram, mhc, moe, quant
from tests.references.draws import normal


def test_engram_hash_of_the_published_tokens() -> None:
    sizes = [
        16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
    ]  # fmt: skip
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    multipliers = torch.tensor([[76632096046245, 4839876093313]])
    rows = engram.engram_hash(
        torch.tensor([[5, 7], [5, 7]]).int(),
        multipliers,
        torch.tensor([[sizes]]).int(),
        torch.from_numpy(offsets).int().unsqueeze(0),
    )
    assert rows.dtype == torch.int32
    assert rows.shape == (1, 2, 8)
    assert rows[0, 0].tolist() == [
        6961830, 31143904, 34796895, 48021142, 75858929, 90471933, 97778503, 125113896,
    ]  # fmt: skip


def test_engram_hash_mixes_in_one_older_token_per_order() -> None:
    ids = torch.tensor([[3, 4, 5, 6]]).int()
    multipliers = torch.tensor([[11, 13, 17, 19], [23, 29, 31, 37]])
    sizes = torch.tensor([[[5, 7], [11, 13], [17, 19]], [[5, 7], [11, 13], [17, 19]]]).int()
    offsets = torch.tensor([[0, 5, 12, 23, 36, 53]] * 2).int()
    rows = engram.engram_hash(ids, multipliers, sizes, offsets)
    for layer in range(2):
        mixed, expected = 3 * int(multipliers[layer, 0]), []
        for order, token in enumerate((4, 5, 6)):
            mixed ^= token * int(multipliers[layer, order + 1])
            expected += [mixed % int(size) for size in sizes[layer, order]]
        golden = [value + int(o) for value, o in zip(expected, offsets[layer], strict=True)]
        assert rows[layer, 0].tolist() == golden


def test_engram_gate_takes_the_fused_weight() -> None:
    x, k, v = normal(1, 3, 4, 16), normal(2, 3, 4, 16), normal(3, 3, 16)
    wh, we = normal(4, 4, 16), normal(5, 4, 16)
    fused = engram.fused_weight(wh, we)
    assert torch.equal(fused, wh.float() * we.float())
    ours = engram.engram_gate_fwd(x, k, v, fused, 1e-20)
    for t in range(3):
        for j in range(4):
            a, b = x[t, j].double(), k[t, j].double()
            dot = float((a / a.square().mean().sqrt() * fused[j].double()) @ b)
            dot /= 4 * float(b.square().mean().sqrt())
            gate = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)))
            golden = a + gate * v[t].double()
            np.testing.assert_allclose(ours[t, j].double(), golden, rtol=2**-8, atol=2**-8)


def test_mhc_pre_and_post_follow_the_formulas() -> None:
    residual, x = normal(6, 3, 4, 32), normal(7, 3, 32)
    fn, base = normal(8, 24, 128).float() * 0.1, normal(9, 24).float()
    scale = torch.tensor([0.5, 1.0, 2.0])
    y, (post, comb) = mhc.mhc_pre(residual, fn, scale, base, 1e-20)
    flat = residual.double().reshape(3, -1).numpy()
    z = flat @ fn.double().numpy().T / np.sqrt((flat**2).mean(1, keepdims=True))
    z = z * np.repeat(scale.numpy(), (4, 4, 16)) + base.numpy()
    pre = 1 / (1 + np.exp(-z[:, :4])) + 1e-6
    golden = np.einsum("tj,tjd->td", pre, residual.double())
    np.testing.assert_allclose(y.double(), golden, rtol=2**-7, atol=2**-8)
    np.testing.assert_allclose(post, 2 / (1 + np.exp(-z[:, 4:8])), rtol=1e-5)
    c = np.exp(z[:, 8:].reshape(3, 4, 4))
    c = c / c.sum(2, keepdims=True) + 1e-6
    c = c / (c.sum(1, keepdims=True) + 1e-6)
    for _ in range(19):
        c = c / (c.sum(2, keepdims=True) + 1e-6)
        c = c / (c.sum(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(comb, c, rtol=1e-4)
    out = mhc.mhc_post(x, residual, post, comb)
    mixed = np.einsum("tjk,tjd->tkd", c, residual.double())
    mixed += post.double().numpy()[:, :, None] * x.double().numpy()[:, None]
    np.testing.assert_allclose(out.double(), mixed, rtol=2**-7, atol=2**-7)


def test_mhc_head_collapses_with_its_own_weights() -> None:
    residual, fn = normal(6, 3, 4, 32), normal(8, 4, 128).float() * 0.1
    ours = mhc.mhc_head(residual, fn, torch.ones(1), torch.zeros(4), 1e-6)
    flat = residual.double().reshape(3, -1).numpy()
    z = flat @ fn.double().numpy().T / np.sqrt((flat**2).mean(1, keepdims=True) + 1e-6)
    golden = np.einsum("tj,tjd->td", 1 / (1 + np.exp(-z)) + 1e-6, residual.double())
    np.testing.assert_allclose(ours.double(), golden, rtol=2**-7, atol=2**-8)
    assert torch.equal(mhc.expand_from_embedding(residual[:, 0], 4)[:, 3], residual[:, 0])


def test_scores_and_gate() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0]])
    assert moe.topk_gate(logits, 3).tolist() == [[1, 2, 0], [0, 1, 2]]
    np.testing.assert_allclose(
        moe.gate_scores(logits), np.sqrt(np.log1p(np.exp(logits.numpy()))), rtol=1e-6
    )
    np.testing.assert_allclose(
        moe.gate_scores(logits, "sigmoid"), 1 / (1 + np.exp(-logits.numpy())), rtol=1e-6
    )
    np.testing.assert_allclose(moe.gate_scores(logits, "softmax").sum(1), 1, rtol=1e-6)
    weights = moe.normalize_weight(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    assert weights.tolist() == [[0.25, 0.75], [0.0, 0.0]]
    ids = torch.tensor([[0, 5], [3, -1], [5, 2]])
    assert moe.group_count(ids, 6).tolist() == [1, 0, 1, 1, 0, 2]
    assert moe.mask_indices_by_tp(ids, 6, 2, 1).tolist() == [[-1, 2], [0, -1], [2, -1]]
    np.testing.assert_allclose(moe.aux_fi(ids, 6, 2), np.array([1, 0, 1, 1, 0, 2]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), alignment=st.sampled_from([1, 4, 8]))
def test_expanding_and_reducing_gives_each_token_its_weight_back(seed: int, alignment: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(5)])
    ids[torch.rand(5, 3, generator=generator) < 0.2] = -1
    mapping = moe.get_fused_mapping(ids, 6, alignment)
    assert bool((mapping.num_tokens_per_expert % alignment == 0).all())
    assert mapping.pos_to_expert.tolist() == sorted(mapping.pos_to_expert.tolist())
    for token in range(5):
        for slot in range(3):
            row = int(mapping.token_topk_to_pos[token, slot])
            if ids[token, slot] < 0:
                assert row == -1
            else:
                assert int(mapping.pos_to_expert[row]) == int(ids[token, slot])
                assert int(mapping.pos_to_token[row]) == token
                assert int(mapping.pos_to_token_topk[row]) == 3 * token + slot
    x = normal(seed, 5, 8, dtype=torch.float32)
    rows = moe.expand_to_fused(x, mapping)
    assert not bool(rows[mapping.pos_to_token < 0].any())
    weights = torch.rand(5, 3, generator=generator)
    total = (weights * (ids >= 0)).sum(1, keepdim=True)
    np.testing.assert_allclose(moe.reduce_fused(rows, mapping, weights), x * total, rtol=1e-5)
    np.testing.assert_allclose(
        moe.reduce_fused(rows, mapping), x * (ids >= 0).sum(1, keepdim=True), rtol=1e-6
    )


def test_fp8_rows_expand_with_their_scales() -> None:
    mapping = moe.get_fused_mapping(torch.tensor([[1], [0]]), 2, alignment=2)
    data, scale = quant.per_token_cast(normal(1, 2, 32), "e4m3")
    rows, row_scale = moe.expand_to_fused_with_sf(data, scale, mapping)
    assert rows.dtype == torch.float8_e4m3fn
    assert torch.equal(rows.view(torch.uint8)[0], data.view(torch.uint8)[1])
    assert torch.equal(row_scale[2], scale[0])
    assert not bool(rows.view(torch.uint8)[1].any())


def test_swiglu_and_cast_weighs_each_row_by_its_pair() -> None:
    x = normal(2, 4, 64) * 3
    pairs, weights = torch.tensor([3, -1, 0, 2]), torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    data, scale = quant.swiglu_forward_and_per_token_cast(
        x, pos_to_token_topk=pairs, topk_weights=weights, swiglu_clamp_value=2.0
    )
    values = quant.cast_back((data, scale)).double().numpy()
    gate = np.minimum(x[:, :32].double().numpy(), 2)
    up = np.clip(x[:, 32:].double().numpy(), -2, 2)
    golden = gate / (1 + np.exp(-gate)) * up * np.array([4.0, 0.0, 0.5, 2.0])[:, None]
    np.testing.assert_allclose(values, golden, atol=2.0**-4 * np.abs(golden).max())
    assert not values[1].any()


@pytest.mark.parametrize("round_sf", [True, False])
def test_casts_keep_power_of_two_scales_where_asked(round_sf: bool) -> None:
    x = normal(3, 40, 64)
    for data, scale in (
        quant.per_token_cast(x, "e4m3", 32, round_sf),
        quant.per_block_cast(x, 32, round_sf),
    ):
        exponents = torch.log2(scale)
        assert bool((exponents == exponents.round()).all()) == round_sf
        tile = 32 if scale.shape[0] == 2 else 1
        back = quant.cast_back((data, scale), (tile, 32)).double()
        np.testing.assert_allclose(back, x.double(), atol=2.0**-4 * 4.5)


def test_wrong_operands_are_refused() -> None:
    with pytest.raises(UsageError, match="format is 'e5m2'"):
        quant.per_token_cast(normal(1, 2, 32), "e5m2")
    with pytest.raises(UsageError, match="go together"):
        quant.swiglu_forward_and_per_token_cast(normal(1, 2, 64), topk_weights=torch.ones(1, 2))
    with pytest.raises(UsageError, match="gate and up"):
        quant.swiglu_forward_and_per_token_cast(normal(1, 2, 33))
    with pytest.raises(UsageError, match=r"within -1\.\.5"):
        moe.group_count(torch.tensor([[6]]), 6)
    with pytest.raises(UsageError, match="5 experts over 2 ranks"):
        moe.mask_indices_by_tp(torch.tensor([[1]]), 5, 2, 0)
    with pytest.raises(UsageError, match=r"not within 1\.\.4"):
        moe.topk_gate(torch.zeros(1, 4), 5)
    with pytest.raises(UsageError, match="scoring_func"):
        moe.gate_scores(torch.zeros(1, 4), "relu")
    mapping = moe.get_fused_mapping(torch.tensor([[0]]), 1)
    with pytest.raises(UsageError, match="x has shape"):
        moe.reduce_fused(torch.zeros(2, 4), mapping)
    with pytest.raises(UsageError, match="float8_e4m3fn"):
        moe.expand_to_fused_with_sf(torch.zeros(1, 4), torch.zeros(1, 1), mapping)
    with pytest.raises(UsageError, match="no backward pass"):
        engram.engram_gate_fwd(
            normal(1, 1, 2, 8), normal(1, 1, 2, 8), normal(1, 1, 8), torch.ones(2, 8), 1e-6,
            save_for_backward=True,
        )  # fmt: skip
    with pytest.raises(UsageError, match="int64"):
        engram.engram_hash(
            torch.zeros(1, 2).int(), torch.zeros(1, 2).int(), torch.ones(1, 1, 1).int(),
            torch.zeros(1, 1).int(),
        )  # fmt: skip


def test_mhc_is_found_where_the_original_has_it() -> None:
    from references import tile_kernels

    assert tile_kernels.modeling.mhc is tile_kernels.mhc
