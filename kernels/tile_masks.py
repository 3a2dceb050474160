"""Constant 0/1 tiles that say which partition belongs to which group of partitions."""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = ["owner_mask", "same_group_mask"]


def owner_mask(num_groups: int, group_rows: int) -> Any:
    """fp32 [num_groups * group_rows, num_groups]: 1 where partition p lies in group g."""
    rows = num_groups * group_rows
    mask_sb = nl.ndarray((rows, num_groups), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=mask_sb, value=1.0)
    _keep_own_groups(mask_sb, [[-group_rows, num_groups]], group_rows)
    return mask_sb


def same_group_mask(num_groups: int, group_rows: int) -> Any:
    """fp32 [rows, rows], rows = num_groups * group_rows: 1 where both lie in one group.

    As the stationary operand of a matmul it adds up a group and hands every member the sum.
    """
    rows = num_groups * group_rows
    mask_sb = nl.ndarray((rows, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=mask_sb, value=1.0)
    _keep_own_groups(mask_sb, [[-group_rows, num_groups], [0, group_rows]], group_rows)
    return mask_sb


def _keep_own_groups(mask_sb: Any, pattern: Any, group_rows: int) -> None:
    # Zero where p - g * group_rows is negative, then where it reaches the next group.
    nisa.affine_select(
        dst=mask_sb,
        pattern=pattern,
        offset=0,
        channel_multiplier=1,
        on_true_tile=mask_sb,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )
    nisa.affine_select(
        dst=mask_sb,
        pattern=pattern,
        offset=-group_rows,
        channel_multiplier=1,
        on_true_tile=mask_sb,
        on_false_value=0.0,
        cmp_op=nl.less,
    )
