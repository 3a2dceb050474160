"""Every function of DeepSeek's libraries that this model calls has a face here (model.md §5).

Not listed, since V4.1 does not call it: wgrad GEMMs, group-limited routing, FlashMLA's dense and
backward kernels, V4's cache format.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.errors import UsageError
from references import deep_gemm
from tests.references.draws import normal

# Face -> function -> parameters of the table that a caller names.
FACES: dict[str, dict[str, str]] = {
    "deep_gemm": {
        "fp8_fp4_gemm_nt": "a b d c recipe_a recipe_b alpha",
        "fp8_gemm_nt": "a b d c",
        "fp4_gemm_nt": "a b d c",
        "bf16_gemm_nt": "a b d c",
        "m_grouped_fp8_fp4_gemm_nt_contiguous": "a b d grouped_layout",
        "m_grouped_fp8_fp4_gemm_nt_masked": "a b d masked_m expected_m",
        "m_grouped_bf16_gemm_nt_contiguous": "a b d grouped_layout",
        "m_grouped_bf16_gemm_nt_masked": "a b d masked_m expected_m",
        "fp8_einsum": "expression x y out",
        "fp8_fp4_mqa_logits": "q kv weights ks ke max_seqlen_k logits_dtype",
        "fp8_fp4_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta",
        "get_mqa_logits_metadata": "",
        "get_paged_mqa_logits_metadata": "",
        "fp8_fp4_sparse_mqa_logits": "q kv weights ks ke metadata",
        "fp8_fp4_paged_sparse_mqa_logits": "q kv_cache weights context_lens block_table metadata",
        "get_sparse_mqa_logits_metadata": "sparse_kv_block_indices sparse_block_kv",
        "get_paged_sparse_mqa_logits_metadata": "sparse_kv_block_indices sparse_block_kv",
        "tf32_hc_prenorm_gemm": "a b d sqr_sum num_splits",
        "mega_mhc": "x residual shifted_prev_mix post_mix comb_res_mix fn mix_scales mix_bases "
        "rmsnorm_weight rmsnorm_eps new_residual new_prev new_post new_comb y_bf16 y_fp8",
        "bf16_mega_gate": "x weight num_topk route_scale scoring_func bias to_physical_map",
        "fp8_fp4_mega_moe": "y l1 l2 sym_buffer shared_l1 shared_l2 activation activation_clamp",
        "get_symm_buffer_for_mega_moe": "group num_experts num_max_tokens_per_rank num_topk hidden",
        "transform_weights_for_mega_moe": "l1 l2",
        "per_token_cast_to_fp8": "x use_ue8m0 gran_k",
        "per_token_cast_to_fp4": "x use_ue8m0 gran_k",
        "per_block_cast_to_fp8": "x use_ue8m0",
        "cast_back_from_fp4": "",
        "cast_back_from_fp8": "",
        "transform_sf_into_required_layout": "sf mn k recipe num_groups",
        "get_mn_major_tma_aligned_packed_ue8m0_tensor": "sf",
    },
    "flash_mla": {
        "flash_mla_with_kvcache": "q k_cache block_table cache_seqlens head_dim_v softmax_scale "
        "causal is_fp8_kvcache indices attn_sink extra_k_cache extra_indices_in_kvcache "
        "topk_length extra_topk_length",
        "get_mla_metadata": "",
        "flash_mla_sparse_fwd": "q kv indices sm_scale d_v attn_sink topk_length indexer_topk",
        "fused_norm_rope_attn_rope_cast.prefill": "enable_q_norm token_positions cos_sin_cache "
        "n_wv_group num_per_channels q kv indices sm_scale attn_sink",
        "fused_norm_rope_attn_rope_cast.decode": "q k_cache indices_in_kvcache extra_k_cache "
        "extra_indices_in_kvcache topk_length extra_topk_length",
        "fused_norm_rope_attn_rope_cast.permute_q_b_proj": "weight_and_sf h_q d_q",
        "fused_norm_rope_attn_rope_cast.permute_wv_proj": "weight_and_sf wv_group_size d_o",
    },
    "deep_select": {
        "topk": "input topk sorted begin end indices_type sorted_index output_idx "
        "output_idx_offset idx_oob_fill_value value_oob_fill_value return_value "
        "abort_when_nan_found",
        "get_stride_requirement": "",
    },
    "deep_ep": {
        "ElasticBuffer": "group num_max_tokens_per_rank hidden num_topk",
        "ElasticBuffer.dispatch": "x topk_idx topk_weights num_experts num_max_tokens_per_rank "
        "expert_alignment do_expand",
        "ElasticBuffer.combine": "x handle topk_weights bias",
        "ElasticBuffer.engram_write": "storage",
        "ElasticBuffer.engram_fetch": "indices",
        "ElasticBuffer.pp_set_config": "num_max_tensor_bytes num_max_inflight_tensors",
        "ElasticBuffer.pp_send": "t dst_rank_idx",
        "ElasticBuffer.pp_recv": "t src_rank_idx",
        "ElasticBuffer.agrs_set_config": "num_max_session_bytes num_max_all_gathers_per_session",
        "ElasticBuffer.agrs_new_session": "enabled",
        "ElasticBuffer.agrs_get_inplace_tensor": "shapes dtype",
        "ElasticBuffer.all_gather": "t",
        "Buffer.get_dispatch_layout": "topk_idx num_experts",
        "Buffer.dispatch": "x handle num_tokens_per_rank is_token_in_rank num_tokens_per_expert "
        "topk_idx topk_weights expert_alignment num_worst_tokens",
        "Buffer.combine": "x handle topk_weights bias",
        "Buffer.low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts "
        "use_fp8 round_scale return_recv_hook",
        "Buffer.low_latency_combine": "x topk_idx topk_weights handle out return_recv_hook",
    },
    "tile_kernels": {
        "engram.engram_hash": "ngram_token_ids multipliers vocab_sizes offsets",
        "engram.fused_weight": "wh we",
        "engram.engram_gate_fwd": "x k v weight_fused eps clamp_value save_for_backward",
        "modeling.mhc.expand_from_embedding": "",
        "modeling.mhc.mhc_pre": "residual fn scale base norm_eps post_mult_value pre_eps",
        "modeling.mhc.mhc_head": "",
        "mhc.mhc_pre_norm_fn": "",
        "mhc.mhc_pre_split_mixes": "",
        "mhc.sinkhorn_normalize": "",
        "mhc.mhc_pre_apply_mix": "",
        "mhc.mhc_post": "x residual post comb",
        "moe.topk_gate": "scores",
        "moe.normalize_weight": "",
        "moe.get_fused_mapping": "",
        "moe.expand_to_fused": "",
        "moe.expand_to_fused_with_sf": "",
        "moe.reduce_fused": "",
        "moe.group_count": "",
        "moe.mask_indices_by_tp": "",
        "moe.aux_fi": "",
        "quant.per_token_cast": "x fmt num_per_channels round_sf",
        "quant.per_block_cast": "",
        "quant.cast_back": "",
        "quant.swiglu_forward_and_per_token_cast": "x num_per_channels pos_to_token_topk "
        "topk_weights swiglu_clamp_value",
    },
}
ENTRIES = [(face, name) for face, functions in FACES.items() for name in functions]


def found(face: str, name: str) -> Callable[..., Any]:
    target: Any = importlib.import_module(f"references.{face}")
    assert name.partition(".")[0] in target.__all__
    for part in name.split("."):
        target = getattr(target, part)
    assert callable(target)
    return target  # type: ignore[no-any-return]


@pytest.mark.parametrize(("face", "name"), ENTRIES, ids=[f"{f}.{n}" for f, n in ENTRIES])
def test_a_function_of_the_table_is_there_with_its_parameters(face: str, name: str) -> None:
    parameters = inspect.signature(found(face, name)).parameters
    missing = [one for one in FACES[face][name].split() if one not in parameters]
    assert not missing


def test_transformed_expert_weights_and_scales_stay_plain() -> None:
    l1 = (torch.zeros(2, 8, 16, dtype=torch.int8), torch.ones(2, 8, 1))
    l2 = (torch.zeros(2, 32, 2, dtype=torch.int8), torch.ones(2, 32, 1))
    assert deep_gemm.transform_weights_for_mega_moe(l1, l2) == (l1, l2)
    with pytest.raises(UsageError, match="l2 values has shape"):
        deep_gemm.transform_weights_for_mega_moe(l1, l1)
    scale = torch.tensor([[0.25, 4.0]])
    assert torch.equal(deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(scale.t()), scale.t())
    for bad in (torch.tensor([[3.0]]), torch.tensor([[0.0]]), torch.tensor([[-2.0]])):
        with pytest.raises(UsageError, match="no positive power of two"):
            deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(bad)


def test_mega_mhc_casts_its_output_in_place() -> None:
    x, residual = normal(16, 3, 32), normal(17, 3, 4, 32)
    post, comb = normal(18, 3, 4, 1).float(), normal(19, 3, 4, 4).float()
    fn, base = normal(20, 24, 128).float() * 0.1, normal(21, 24).float()
    outputs = [
        torch.zeros(3, 4, 32, dtype=torch.bfloat16),
        torch.zeros(3, 4, 1),
        torch.zeros(3, 4, 1),
        torch.zeros(3, 4, 4),
        torch.zeros(3, 32, dtype=torch.bfloat16),
    ]
    data, scale = torch.zeros(3, 32).to(torch.float8_e4m3fn), torch.zeros(3, 1)
    call = (x, residual, None, post, comb, fn, torch.ones(3), base, 1e-20, 1e-6, 20, normal(23, 32))
    deep_gemm.mega_mhc(*call, 1e-20, *outputs, y_fp8=(data, scale))
    y = outputs[-1].double()
    assert float(y.abs().amax()) > 0.5
    # Half a step of e4m3 is 2^-4 of a value; below the normal range, of the smallest normal.
    error = (data.double() * scale - y).abs()
    assert bool((error <= 2**-4 * y.abs() + 2**-10 * scale).all())
    with pytest.raises(UsageError, match="y_fp8 scales has shape"):
        deep_gemm.mega_mhc(*call, 1e-20, *outputs, y_fp8=(data, torch.zeros(3, 2)))
    with pytest.raises(UsageError, match="y_fp8 data must be"):
        deep_gemm.mega_mhc(*call, 1e-20, *outputs, y_fp8=(torch.zeros(3, 32), scale))
