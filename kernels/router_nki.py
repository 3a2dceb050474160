"""MoE router: sqrt(softplus) scores, the bias steers selection only, ties go to the smaller id.

Dimensions:
    T tokens, any number; d channels, any, <= 32768; E experts, <= 512 (one PSUM bank);
    top_k, <= E.

Layouts: x [T, d] bf16 row-major; weight [Kp, E] bf16 or fp32 (plain_weight.py); bias [1, E] fp32;
expert_ids int32 [T, k] (int64 after the host) by falling biased score; expert_weights fp32 [T, k].
Accumulation: fp32 in PSUM; scores, selection and normalisation in fp32.
Expected error: fp32 summation and an fp32 ulp of softplus (ScalarE approximates it on the device).
sqrt is a power of 1/2 on GpSimd: ScalarE's ends at 2^-116, where softplus of -81 lies.

Tiling (LNC=2: each core takes half of the tokens):
    weight -> SBUF once [128, Kp/128, E]
    for 128 tokens at a time: x -> PE transpose; Kp/128 matmuls -> PSUM [tokens, E]
        ScalarE softplus(logit / temperature); GpSimd power 1/2
        VectorE score + bias; k/8 rounds of max8 + find_index8 (+ match_replace8)
        GpSimd gathers the unbiased scores; VectorE sum, reciprocal, * route_scale

Refuses: numerics other than trn2's, x that is not bf16, E > 512.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.numerics import Numerics
from kernels.channel_tiles import contract, rows_by_channel
from kernels.contract import require, require_dtype, require_limit, require_shape, require_trn2
from kernels.launch import launch_many, nisa, nki, nl
from kernels.plain_weight import channel_major
from kernels.score_selection import ROUND
from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div, core_share, largest_fold

__all__ = ["router", "router_kernel"]

_MAX_K = 32768
_SUM_FLOOR = 1e-20


def _scores(xt_sb: Any, weight_sb: Any, gate_temp: float) -> Any:
    """fp32 [tokens, E]: sqrt(softplus(x . w / temperature))."""
    tokens, experts = xt_sb.shape[2], weight_sb.shape[2]
    logits_psum = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.psum)
    score_sb = nl.ndarray((tokens, experts), dtype=nl.float32, buffer=nl.sbuf)
    contract(xt_sb, weight_sb, logits_psum)
    nisa.activation(dst=score_sb, op=nl.softplus, data=logits_psum, scale=1.0 / gate_temp)
    nisa.tensor_scalar(
        dst=score_sb, data=score_sb, op0=nl.power, operand0=0.5, engine=nisa.engine.gpsimd
    )
    return score_sb


def _best_experts(biased_sb: Any, top_k: int) -> Any:
    """uint32 [tokens, rounds * 8]: ids by falling value; biased_sb is used up."""
    tokens = biased_sb.shape[0]
    rounds = ceil_div(top_k, ROUND)
    id_sb = nl.ndarray((tokens, rounds * ROUND), dtype=nl.uint32, buffer=nl.sbuf)
    for i in range(rounds):
        top_sb = nl.ndarray((tokens, ROUND), dtype=nl.float32, buffer=nl.sbuf)
        nisa.max8(dst=top_sb, src=biased_sb)
        nisa.nc_find_index8(dst=id_sb[:, i * ROUND : (i + 1) * ROUND], data=biased_sb, vals=top_sb)
        if i + 1 < rounds:
            nisa.nc_match_replace8(dst=biased_sb, data=biased_sb, vals=top_sb, imm=float("-inf"))
    return id_sb


def _weights(score_sb: Any, id_sb: Any, route_scale: float, normalised: int) -> Any:
    """fp32 [tokens, top_k]: scores of the chosen, divided by their sum if normalised."""
    tokens, top_k = id_sb.shape
    weight_sb = nl.ndarray((tokens, top_k), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=weight_sb, data=score_sb, indices=id_sb)
    if normalised == 0:
        nisa.tensor_scalar(dst=weight_sb, data=weight_sb, op0=nl.multiply, operand0=route_scale)
        return weight_sb
    total_sb = nl.ndarray((tokens, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total_sb, op=nl.add, data=weight_sb, axis=1)
    nisa.tensor_scalar(dst=total_sb, data=total_sb, op0=nl.add, operand0=_SUM_FLOOR)
    nisa.reciprocal(dst=total_sb, data=total_sb)
    nisa.tensor_scalar(
        dst=weight_sb,
        data=weight_sb,
        op0=nl.multiply,
        operand0=total_sb,
        op1=nl.multiply,
        operand1=route_scale,
    )
    return weight_sb


@nki.jit
def router_kernel(
    x_hbm: Any,
    weight_hbm: Any,
    bias_hbm: Any,
    top_k: int,
    route_scale: float,
    gate_temp: float,
    normalised: int,
    fold: int,
) -> Any:
    """x [T, d] bf16, weight [Kp, E], bias [1, E] fp32 -> ids [T, k] int32, weights [T, k] fp32."""
    num_tokens = x_hbm.shape[0]
    experts = weight_hbm.shape[1]
    num_k_tiles = weight_hbm.shape[0] // PARTITIONS
    ids_hbm = nl.ndarray((num_tokens, top_k), dtype=nl.int32, buffer=nl.shared_hbm)
    weights_hbm = nl.ndarray((num_tokens, top_k), dtype=nl.float32, buffer=nl.shared_hbm)
    weight_sb = nl.ndarray(
        (PARTITIONS, num_k_tiles, experts), dtype=weight_hbm.dtype, buffer=nl.sbuf
    )
    nisa.dma_copy(
        dst=weight_sb,
        src=weight_hbm.ap(
            pattern=[[experts, PARTITIONS], [experts * PARTITIONS, num_k_tiles], [1, experts]]
        ),
    )
    first_token, my_tokens = core_share(num_tokens)
    end_token = first_token + my_tokens
    for token in range(first_token, end_token, PARTITIONS):
        tokens = min(PARTITIONS, end_token - token)
        xt_sb = rows_by_channel(x_hbm, token, tokens, num_k_tiles, fold, weight_hbm.dtype)
        score_sb = _scores(xt_sb, weight_sb, gate_temp)
        biased_sb = nl.ndarray((tokens, max(experts, ROUND)), dtype=nl.float32, buffer=nl.sbuf)
        if experts < ROUND:
            nisa.memset(dst=biased_sb, value=float("-inf"))
        real = biased_sb[:, 0:experts]
        nisa.dma_copy(dst=real, src=bias_hbm.ap(pattern=[[0, tokens], [1, experts]]))
        nisa.tensor_tensor(dst=real, data1=real, data2=score_sb, op=nl.add)
        id_sb = _best_experts(biased_sb, top_k)
        route_sb = _weights(score_sb, id_sb[:, 0:top_k], route_scale, normalised)
        signed_sb = nl.ndarray((tokens, top_k), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=signed_sb, src=id_sb[:, 0:top_k])
        nisa.dma_copy(dst=ids_hbm[token : token + tokens, :], src=signed_sb)
        nisa.dma_copy(dst=weights_hbm[token : token + tokens, :], src=route_sb)
    return ids_hbm, weights_hbm


def router(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    route_scale: float,
    gate_temp: float,
    normalise: bool,
    *,
    numerics: Numerics,
) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [T, k] int64 and weights [T, k] fp32 of x [T, d] bf16, weight [E, d], bias [E].

    Raises:
        KernelError: UNSUPPORTED numerics, dtype or size.
        UsageError: shapes that do not meet, top_k outside 1..E.
    """
    op = "router"
    require_trn2(op, numerics)
    require_dtype(op, "x", x, torch.bfloat16)
    require_dtype(op, "weight", weight, torch.bfloat16, torch.float32)
    require_dtype(op, "bias", bias, torch.float32, torch.bfloat16)
    require(x.ndim == 2 and bias.ndim == 1, op, "x must be [T, d] and bias [E]")
    num_tokens, channels = x.shape
    experts = bias.shape[0]
    require_shape(op, "weight", weight, (experts, channels))
    require(1 <= top_k <= experts, op, f"top_k {top_k} is not within 1..{experts}")
    require_limit(op, "d", channels, _MAX_K)
    require_limit(op, "E", experts, PSUM_BANK_FP32)
    if num_tokens == 0:
        return x.new_empty((0, top_k), dtype=torch.int64), x.new_empty((0, top_k)).float()
    fold = largest_fold(channels, PARTITIONS // min(num_tokens, PARTITIONS), PARTITIONS)
    ids, weights = launch_many(
        router_kernel,
        x,
        channel_major(weight),
        bias.float().unsqueeze(0),
        top_k,
        float(route_scale),
        float(gate_temp),
        int(normalise and top_k > 1),
        fold,
    )
    return ids.to(torch.int64), weights
