"""Top-k along the free axis by rounds of 8: VectorE max8 and match_replace8.

Of equal values the first positions are taken, in every round: match_replace8 replaces first
matches, and a later round sees only what is left.
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = [
    "CHUNK_SCORES",
    "MAX_SEARCH",
    "ROUND",
    "positions_row",
    "remove_largest",
    "show_scores",
    "visible_mask",
]

ROUND = 8
# Scores of a row on their way from HBM at once.
CHUNK_SCORES = 4096
# max8 looks at 8..16384 elements.
MAX_SEARCH = 16384


def positions_row(partitions: int, columns: int, first: int, step: int) -> Any:
    """fp32 [P, columns]: first, first + step, first + 2 * step, ... on every partition."""
    position_sb = nl.ndarray((partitions, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=position_sb, pattern=[[step, columns]], offset=first, channel_multiplier=0)
    return position_sb


def visible_mask(limit_sb: Any, first: int, columns: int) -> Any:
    """uint8 [tokens, columns]: 1 where position first + i is below the row's limit fp32 [P, 1]."""
    tokens = limit_sb.shape[0]
    seen_sb = nl.ndarray((tokens, columns), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=seen_sb,
        data=positions_row(tokens, columns, first, 1),
        op0=nl.less,
        operand0=limit_sb,
    )
    return seen_sb


def show_scores(scores_hbm: Any, token: int, first: int, seen_sb: Any, shown: Any) -> None:
    """shown [tokens, F] = scores of positions first, first + 1, ... where seen, else -inf.

    seen_sb is uint8 [tokens, <= F]; what is hidden may be NaN: it is never copied.
    """
    tokens, columns = seen_sb.shape
    scores_sb = nl.ndarray((tokens, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=scores_sb, src=scores_hbm[token : token + tokens, first : first + columns])
    nisa.memset(dst=shown, value=float("-inf"))
    nisa.tensor_copy_predicated(dst=shown[:, 0:columns], src=scores_sb, predicate=seen_sb)


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
