"""Every op as a shape rule, for the meta device; written from the signature sheet."""

from __future__ import annotations

import torch

from engine.precision import accumulate_dtype, activation_dtype
from harness.core.errors import UsageError
from harness.core.numerics import Numerics
from harness.core.op_table import OpTable
from harness.core.weights import QuantisedWeight

__all__ = ["TABLE"]

Tensor = torch.Tensor
Dtype = torch.dtype


def _new(like: Tensor, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def _meets(op: str, found: int, needed: int, what: str) -> None:
    if found != needed:
        raise UsageError(f"{op}: {what} is {found}, the other operand has {needed}")


def _act_like(x: Tensor, *_: object, numerics: Numerics) -> Tensor:
    return _new(x, tuple(x.shape), activation_dtype(numerics))


def _quantise_fp8(x: Tensor, *, numerics: Numerics) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows, width = x.shape
    return _new(x, (rows, width), torch.uint8), _new(x, (rows, width // 32), torch.uint8)


def _quantise_fp4(x: Tensor, block: int, *, numerics: Numerics) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows, width = x.shape
    return _new(x, (rows, width // 2), torch.uint8), _new(x, (rows, width // block), torch.uint8)


def _dequantise_fp4(codes: Tensor, scale: Tensor, block: int, *, numerics: Numerics) -> Tensor:
    _meets("dequantise_fp4", scale.shape[1] * block, codes.shape[1] * 2, "width by scales")
    return _new(codes, (codes.shape[0], codes.shape[1] * 2), activation_dtype(numerics))


def _output_dtype(output: str, numerics: Numerics) -> Dtype:
    return {
        "activation": activation_dtype(numerics),
        "accumulate": accumulate_dtype(numerics),
    }[output]


def _linear_fp8(x: Tensor, weight: QuantisedWeight, output: str, *, numerics: Numerics) -> Tensor:
    _meets("linear_fp8", weight.in_features, x.shape[1], "K of the weight")
    shape = (x.shape[0], weight.out_features)
    return _new(x, shape, _output_dtype(output, numerics))


def _linear_bf16(x: Tensor, weight: Tensor, output: str, *, numerics: Numerics) -> Tensor:
    _meets("linear_bf16", weight.shape[1], x.shape[1], "K of the weight")
    return _new(x, (x.shape[0], weight.shape[0]), _output_dtype(output, numerics))


def _linear_fp4_grouped(
    x: Tensor, weight: QuantisedWeight, group_sizes: Tensor, *, numerics: Numerics
) -> Tensor:
    _meets("linear_fp4_grouped", weight.in_features, x.shape[1], "K of the weight")
    _meets("linear_fp4_grouped", weight.codes.shape[0], group_sizes.shape[0], "experts")
    return _new(x, (x.shape[0], weight.out_features), activation_dtype(numerics))


def _router(
    x: Tensor, weight: Tensor, bias: Tensor, top_k: int, *_: object, numerics: Numerics
) -> tuple[Tensor, Tensor]:
    _meets("router", weight.shape[0], bias.shape[0], "experts")
    shape = (x.shape[0], top_k)
    return _new(x, shape, torch.int64), _new(x, shape, accumulate_dtype(numerics))


def _sparse_attention(
    q: Tensor, kv: Tensor, indices: Tensor, sink: Tensor, scale: float, *, numerics: Numerics
) -> Tensor:
    _meets("sparse_attention", kv.shape[1], q.shape[2], "width of kv")
    _meets("sparse_attention", indices.shape[0], q.shape[0], "rows of indices")
    _meets("sparse_attention", sink.shape[0], q.shape[1], "heads of the sink")
    return _act_like(q, scale, numerics=numerics)


def _prefill_attention(
    q: Tensor, rows: Tensor, allowed: Tensor, sink: Tensor, scale: float, *, numerics: Numerics
) -> Tensor:
    _meets("prefill_attention", rows.shape[1], q.shape[2], "width of rows")
    _meets("prefill_attention", allowed.shape[0], q.shape[0], "tokens of allowed")
    _meets("prefill_attention", allowed.shape[1], rows.shape[0], "rows of allowed")
    _meets("prefill_attention", sink.shape[0], q.shape[1], "heads of the sink")
    return _act_like(q, scale, numerics=numerics)


def _index_scores(q: Tensor, keys: Tensor, head_weights: Tensor, *, numerics: Numerics) -> Tensor:
    _meets("index_scores", keys.shape[1], q.shape[2], "width of keys")
    _meets("index_scores", head_weights.shape[1], q.shape[1], "heads of the weights")
    return _new(q, (q.shape[0], keys.shape[0]), accumulate_dtype(numerics))


def _candidate_blocks(scores: Tensor, *_: object, numerics: Numerics) -> Tensor:  # noqa: ARG001
    return _new(scores, tuple(scores.shape), torch.bool)


def _topk_positions(
    scores: Tensor,
    num_visible: Tensor,  # noqa: ARG001
    top_k: int,
    candidates: Tensor | None,  # noqa: ARG001
    *,
    numerics: Numerics,  # noqa: ARG001
) -> Tensor:
    return _new(scores, (scores.shape[0], min(top_k, scores.shape[1])), torch.int64)


def _compress_pool(kv: Tensor, gate: Tensor, ratio: int, *, numerics: Numerics) -> Tensor:
    _meets("compress_pool", gate.shape[0], kv.shape[0], "rows of gates")
    return _new(kv, (kv.shape[0] // ratio, kv.shape[1]), activation_dtype(numerics))


def _hc_mixes(
    streams: Tensor, fn: Tensor, *_: object, numerics: Numerics
) -> tuple[Tensor, Tensor, Tensor]:
    rows, m, width = streams.shape
    _meets("hc_mixes", fn.shape[1], m * width, "columns of fn")
    acc = accumulate_dtype(numerics)
    return (
        _new(streams, (rows, m), acc),
        _new(streams, (rows, m), acc),
        _new(streams, (rows, m, m), acc),
    )


def _hc_collapse(streams: Tensor, pre: Tensor, *, numerics: Numerics) -> Tensor:
    _meets("hc_collapse", pre.shape[1], streams.shape[1], "streams of pre")
    return _new(streams, (streams.shape[0], streams.shape[2]), activation_dtype(numerics))


def _hc_expand(
    y: Tensor, streams: Tensor, post: Tensor, comb: Tensor, *, numerics: Numerics
) -> Tensor:
    _meets("hc_expand", y.shape[1], streams.shape[2], "width of y")
    return _act_like(streams, post, comb, numerics=numerics)


def _engram_lookup(table: QuantisedWeight, row_ids: Tensor, *, numerics: Numerics) -> Tensor:
    shape = (row_ids.shape[0], row_ids.shape[1] * table.codes.shape[1])
    return _new(row_ids, shape, activation_dtype(numerics))


def _engram_gate(streams: Tensor, key: Tensor, *_: object, numerics: Numerics) -> Tensor:
    _meets("engram_gate", key.shape[2], streams.shape[2], "width of key")
    return _act_like(streams, numerics=numerics)


def _output_projection(
    o: Tensor, weight: QuantisedWeight, groups: int, *, numerics: Numerics
) -> Tensor:
    heads, width = o.shape[1], o.shape[2]
    _meets("output_projection", weight.in_features * groups, heads * width, "K of the weight")
    shape = (o.shape[0], groups, weight.out_features // groups)
    return _new(o, shape, accumulate_dtype(numerics))


def _vocab_argmax(logits: Tensor, *, numerics: Numerics) -> Tensor:  # noqa: ARG001
    return _new(logits, (logits.shape[0],), torch.int64)


def _vocab_topk(logits: Tensor, top_k: int, *, numerics: Numerics) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], top_k)
    return _new(logits, shape, accumulate_dtype(numerics)), _new(logits, shape, torch.int64)


TABLE = OpTable(
    {
        "rms_norm": _act_like,
        "rope": _act_like,
        "quantise_fp8": _quantise_fp8,
        "dequantise_fp8": _act_like,
        "quantise_fp4": _quantise_fp4,
        "dequantise_fp4": _dequantise_fp4,
        "linear_fp8": _linear_fp8,
        "linear_fp4_grouped": _linear_fp4_grouped,
        "linear_bf16": _linear_bf16,
        "swiglu": _act_like,
        "router": _router,
        "sparse_attention": _sparse_attention,
        "prefill_attention": _prefill_attention,
        "index_scores": _index_scores,
        "candidate_blocks": _candidate_blocks,
        "topk_positions": _topk_positions,
        "compress_pool": _compress_pool,
        "hc_mixes": _hc_mixes,
        "hc_collapse": _hc_collapse,
        "hc_expand": _hc_expand,
        "engram_lookup": _engram_lookup,
        "engram_gate": _engram_gate,
        "output_projection": _output_projection,
        "vocab_argmax": _vocab_argmax,
        "vocab_topk": _vocab_topk,
    }
)
