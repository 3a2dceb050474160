"""Inputs of routing, attention, the indexer, top-k and the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.run.inputs.draw import Draw

__all__ = ["BUILDERS"]

_SCORE_SPIKES = (1e30, -1e30, 1e-38, -1e-38)


def _router(draw: Draw) -> dict[str, Any]:
    T, d, E = (draw.case.axes[axis] for axis in ("T", "d", "E"))
    weight = draw.normal(E, d, scale=d**-0.5).to(torch.bfloat16)
    bias = draw.normal(E, scale=0.01)
    if draw.family == "ties":  # twins: equal scores in any arithmetic that treats rows alike
        weight[1::2] = weight[: E // 2 * 2 : 2]
        bias[1::2] = bias[: E // 2 * 2 : 2]
    return {"x": draw.activations(T, d, spread=6), "weight": weight, "bias": bias}


def _sparse_attention(draw: Draw) -> dict[str, Any]:
    T, H, D, n, M = (draw.case.axes[axis] for axis in ("T", "H", "D", "n", "M"))
    return {
        "q": draw.activations(T, H, D, spread=4),
        "kv": draw.activations(n, D, spread=4),
        "indices": _selected_rows(draw, T, n, M),
        "sink": draw.normal(H, scale=8.0 if draw.family == "extremes" else 0.5),
    }


def _selected_rows(draw: Draw, T: int, n: int, M: int) -> torch.Tensor:
    """Distinct rows a token, in random order, -1 in some places; row 0 has all it can.

    "masked_rows": every third token selects nothing.
    """
    num_available = min(n, M)
    indices = torch.full((T, M), -1, dtype=torch.int64)
    for token in range(T):
        fewest = 0 if num_available == 0 else 1
        count = num_available
        if token and num_available:
            count = int(draw.integers(fewest, num_available + 1, 1))
        rows = torch.from_numpy(draw.rng.permutation(n)[:count])
        places = torch.from_numpy(draw.rng.permutation(M)[:count])
        indices[token, places] = rows
    if draw.family == "masked_rows":
        indices[draw.special_rows(T)] = -1
    return indices


def _prefill_attention(draw: Draw) -> dict[str, Any]:
    T, H, D, N = (draw.case.axes[axis] for axis in ("T", "H", "D", "N"))
    sink = draw.normal(H, scale=8.0 if draw.family == "extremes" else 0.5)
    if draw.family == "masked_rows":  # where neither a row nor a sink weighs anything, 0 shows
        sink[::2] = -torch.inf
    return {
        "q": draw.activations(T, H, D, spread=4),
        "rows": draw.activations(N, D, spread=4),
        "allowed": _allowed_rows(draw, T, N),
        "sink": sink,
    }


def _allowed_rows(draw: Draw, T: int, N: int) -> torch.Tensor:
    """What neighbouring prompt tokens see: a window that moves with the token in the last rows,
    W = N // 8 of them, and a third of the rows before it. The fifth sixth of the rows is nobody's
    and another one is not of the 32 tokens in a line, so that whole tiles of long problems are
    left out, and not the same ones everywhere.

    "masked_rows": every third token sees nothing.
    """
    window = max(1, N // 8)
    newest = N - T + torch.arange(T).unsqueeze(1)
    position = torch.arange(N).unsqueeze(0)
    in_window = (position <= newest) & (position > newest - window)
    selected = (draw.normal(T, N) < -0.43) & (position <= newest - window)
    allowed = in_window | selected
    sixth = position * 6 // N
    allowed &= (sixth != 4) & (sixth != torch.arange(T).unsqueeze(1) // 32 % 4)
    if draw.family == "masked_rows":
        allowed[draw.special_rows(T)] = False
    return allowed


def _index_scores(draw: Draw) -> dict[str, Any]:
    T, h, x, n = (draw.case.axes[axis] for axis in ("T", "h", "x", "n"))
    return {
        "q": draw.activations(T, h, x, spread=10),
        "keys": draw.activations(n, x, spread=10),
        "head_weights": draw.floats(T, h, spread=4, scale=(x * h) ** -0.5),
    }


def _candidate_blocks(draw: Draw) -> dict[str, Any]:
    T, n = draw.case.axes["T"], draw.case.axes["n"]
    return {
        "scores": draw.floats(T, n, spikes=_SCORE_SPIKES),
        "num_visible": _num_visible(draw, T, n),
    }


def _topk_positions(draw: Draw) -> dict[str, Any]:
    T, n = draw.case.axes["T"], draw.case.axes["n"]
    scores = draw.floats(T, n, spikes=_SCORE_SPIKES)
    mask = draw.normal(T, n) < 0.7 if draw.scalars["candidates"] else None
    if mask is not None and draw.family == "masked_rows":
        mask[draw.special_rows(T)] = False
    num_visible = _num_visible(draw, T, n)
    return {"scores": scores, "num_visible": num_visible, "candidates": mask}


def _num_visible(draw: Draw, T: int, n: int) -> torch.Tensor:
    """1..n entries a row, row 0 sees all; "masked_rows": every third row sees none."""
    visible = draw.integers(min(1, n), n + 1, T)
    if T:
        visible[0] = n
    if draw.family == "masked_rows":
        visible[draw.special_rows(T)] = 0
    return visible


def _vocab_argmax(draw: Draw) -> dict[str, Any]:
    return {"logits": _logits(draw)}


_vocab_topk = _vocab_argmax


def _logits(draw: Draw) -> torch.Tensor:
    T, V = draw.case.axes["T"], draw.case.axes["V"]
    logits = draw.floats(T, V, spikes=(3e38, -3e38, 1e-38), scale=4.0)
    if draw.family == "ties" and V:
        logits[::3] = 1.25  # rows that are one big tie
        logits[1::3] = torch.where(draw.integers(0, 2, V) == 0, 0.0, -0.0)  # zeros of both signs
    if draw.family == "masked_rows":  # few words allowed, fewer than a top-k asks for
        logits[draw.special_rows(T)[:, None] & (draw.integers(0, V, T, V) >= 3)] = -torch.inf
    return logits


BUILDERS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "router": _router,
    "sparse_attention": _sparse_attention,
    "prefill_attention": _prefill_attention,
    "index_scores": _index_scores,
    "candidate_blocks": _candidate_blocks,
    "topk_positions": _topk_positions,
    "vocab_argmax": _vocab_argmax,
    "vocab_topk": _vocab_topk,
}
