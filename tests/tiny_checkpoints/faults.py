"""Op tables with one thing wrong: the faults a checkpoint must make visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from harness.core.op_table import OpTable
from harness.core.weights import QuantisedWeight
from references.op_table import TABLE

__all__ = ["FAULTS", "table_of"]

Op = Callable[..., Any]


def _zeroed(name: str) -> Op:
    right = TABLE.ops[name]
    return lambda *args, numerics: torch.zeros_like(right(*args, numerics=numerics))


def _with(name: str, change: Callable[..., tuple[Any, ...]]) -> Op:
    """The right op on changed arguments."""
    right = TABLE.ops[name]
    return lambda *args, numerics: right(*change(*args), numerics=numerics)


def _rolled_scale(weight: QuantisedWeight, axis: int) -> QuantisedWeight:
    return QuantisedWeight(weight.codes, weight.scale.roll(1, axis), weight.layout)


def _swapped_nibbles(weight: QuantisedWeight) -> QuantisedWeight:
    swapped = (weight.codes << 4) | (weight.codes >> 4)
    return QuantisedWeight(swapped, weight.scale, weight.layout)


def _expand_without_mixing(y: Any, streams: Any, post: Any, comb: Any) -> tuple[Any, ...]:
    return y, streams, post, comb.transpose(1, 2)


def _halved_rotation(x: Any, cos: Any, sin: Any, *, numerics: Any) -> Any:
    """Pairs (i, i + R/2) instead of neighbours."""
    width = 2 * cos.shape[-1]
    order = torch.arange(width).view(2, -1).T.flatten()
    turned = x.clone()
    turned[..., -width:] = x[..., -width:][..., order]
    back = TABLE.ops["rope"](turned, cos, sin, numerics=numerics)
    tail = back[..., -width:].clone()
    back[..., -width:][..., order] = tail
    return back


FAULTS: dict[str, tuple[str, Op]] = {
    "no attention": ("sparse_attention", _zeroed("sparse_attention")),
    "sink forgotten": (
        "sparse_attention",
        _with("sparse_attention", lambda q, kv, i, sink, s: (q, kv, i, sink - 1e4, s)),
    ),
    "oldest key dropped": (
        "sparse_attention",
        _with("sparse_attention", lambda q, kv, i, sink, s: (q, kv, i[:, :-1], sink, s)),
    ),
    "attention scale of another width": (
        "sparse_attention",
        _with("sparse_attention", lambda q, kv, i, sink, s: (q, kv, i, sink, s * 0.5)),
    ),
    "no routed experts": ("linear_fp4_grouped", _zeroed("linear_fp4_grouped")),
    "swapped nibbles": (
        "linear_fp4_grouped",
        _with("linear_fp4_grouped", lambda x, w, sizes: (x, _swapped_nibbles(w), sizes)),
    ),
    "expert scale of the next block": (
        "linear_fp4_grouped",
        _with("linear_fp4_grouped", lambda x, w, sizes: (x, _rolled_scale(w, -1), sizes)),
    ),
    "linear scale of the next row of blocks": (
        "linear_fp8",
        _with("linear_fp8", lambda x, w, out: (x, _rolled_scale(w, -2), out)),
    ),
    "no clamp": (
        "swiglu",
        _with("swiglu", lambda gate, up, limit, weight: (gate, up, 1e9, weight)),
    ),
    "routing weight forgotten": (
        "swiglu",
        _with("swiglu", lambda gate, up, limit, weight: (gate, up, limit, None)),
    ),
    "routing not scaled": (
        "router",
        _with("router", lambda x, w, b, k, scale, temp, norm: (x, w, b, k, 1.0, temp, norm)),
    ),
    "norm weight forgotten": (
        "rms_norm",
        _with("rms_norm", lambda x, w, eps: (x, torch.ones_like(w), eps)),
    ),
    "rotation by halves": ("rope", _halved_rotation),
    "streams mixed the other way": ("hc_expand", _with("hc_expand", _expand_without_mixing)),
    "one Sinkhorn step": (
        "hc_mixes",
        _with("hc_mixes", lambda x, fn, base, scale, ne, he, n: (x, fn, base, scale, ne, he, 1)),
    ),
    "no Engram": ("engram_gate", lambda streams, *rest, numerics: streams),
    "Engram rows of another head": (
        "engram_lookup",
        _with("engram_lookup", lambda table, rows: (table, rows.roll(1, -1))),
    ),
    "pooling without a gate": (
        "compress_pool",
        _with("compress_pool", lambda kv, gate, ratio: (kv, torch.zeros_like(gate), ratio)),
    ),
    "index heads all alike": (
        "index_scores",
        _with("index_scores", lambda q, k, w: (q, k, torch.ones_like(w))),
    ),
    "all blocks are candidates": (
        "candidate_blocks",
        _with("candidate_blocks", lambda s, n, size, count: (s, n, size, 1 << 20)),
    ),
}


def table_of(fault: str) -> OpTable:
    """The reference table with one op replaced."""
    name, op = FAULTS[fault]
    return replace(TABLE, ops={**TABLE.ops, name: op})


def __getattr__(name: str) -> OpTable:
    """`tests.tiny_checkpoints.faults:FAULT_3` as an op-table target."""
    prefix, _, number = name.rpartition("_")
    if prefix != "FAULT" or not number.isdigit():
        raise AttributeError(name)
    return table_of(list(FAULTS)[int(number)])
