"""Top-k along the free axis by rounds of 8: VectorE max8 and match_replace8.

Of equal values the first positions are taken, in every round: match_replace8 replaces first
matches, and a later round sees only what is left.
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = ["MAX_SEARCH", "ROUND", "positions_row", "remove_largest", "visible_scores"]

ROUND = 8
# max8 looks at 8..16384 elements.
MAX_SEARCH = 16384


def positions_row(partitions: int, columns: int, step: int) -> Any:
    """fp32 [P, columns]: 0, step, 2 * step, ... on every partition."""
    position_sb = nl.ndarray((partitions, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=position_sb, pattern=[[step, columns]], offset=0, channel_multiplier=0)
    return position_sb


def visible_scores(scores_hbm: Any, limit_sb: Any, token: int, tokens: int, columns: int) -> Any:
    """fp32 [tokens, columns]: scores of positions below each row's limit, -inf elsewhere.

    limit_sb is fp32 [tokens, 1]. What is hidden may be NaN: it is never copied.
    """
    entries = scores_hbm.shape[1]
    scores_sb = nl.ndarray((tokens, entries), dtype=nl.float32, buffer=nl.sbuf)
    shown_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
    seen_sb = nl.ndarray((tokens, entries), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=scores_sb, src=scores_hbm[token : token + tokens, :])
    nisa.memset(dst=shown_sb, value=float("-inf"))
    nisa.tensor_scalar(
        dst=seen_sb, data=positions_row(tokens, entries, 1), op0=nl.less, operand0=limit_sb
    )
    nisa.tensor_copy_predicated(dst=shown_sb[:, 0:entries], src=scores_sb, predicate=seen_sb)
    return shown_sb


def remove_largest(work_sb: Any, count: int) -> None:
    """Set the `count` largest of each row of fp32 [P, F >= 8] to -inf, first positions first."""
    partitions = work_sb.shape[0]
    for done in range(0, count, ROUND):
        wanted = min(ROUND, count - done)
        top_sb = nl.ndarray((partitions, ROUND), dtype=nl.float32, buffer=nl.sbuf)
        nisa.max8(dst=top_sb, src=work_sb)
        if wanted < ROUND:
            # +inf matches no score.
            nisa.memset(dst=top_sb[:, wanted:ROUND], value=float("inf"))
        nisa.nc_match_replace8(dst=work_sb, data=work_sb, vals=top_sb, imm=float("-inf"))
