"""Top-k along a row that lies across the partitions: the k-th largest value, bit by bit.

P partitions    G rows (tokens) side by side    F entries of a row a partition; entry = p * F + f

A fp32 score is a pair of halves that order as it does: the upper 15 bits of its size and the lower
16, each with the score's sign (and halved, which is exact). Both are whole numbers VectorE compares
exactly, and both zeros are one. The k-th largest pair is found from its top bit down: a trial is
compared with all entries, the counts of the partitions are added by a matmul with ones, and the bit
stays where at least k entries reach it.
"""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = ["HIDDEN", "chosen_entries", "prefix_mask", "score_halves"]

# Below and above every half of a score.
HIDDEN = -40000.0
# -inf is never chosen: the search starts above its upper half.
_LOWEST_UPPER = -16319.5
_LOWEST_LOWER = -32767.5
_UPPER_BITS, _LOWER_BITS = 16, 17


def prefix_mask(partitions: int) -> Any:
    """bf16 [P, P]: 1 where the row's partition lies before the column's."""
    mask_sb = nl.ndarray((partitions, partitions), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=mask_sb, value=1.0)
    nisa.affine_select(
        dst=mask_sb,
        pattern=[[-1, partitions]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=mask_sb,
        on_false_value=0.0,
        cmp_op=nl.less,
    )
    return mask_sb


def score_halves(scores_sb: Any, seen_sb: Any) -> Any:
    """(upper, lower) halves, fp32 [P, G, F], of scores fp32; upper is HIDDEN where not seen."""
    shape = scores_sb.shape
    bits = scores_sb.view(nl.int32)
    part_sb = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    sign_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    signed_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    upper_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    lower_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=sign_sb,
        data=scores_sb,
        op0=nl.greater_equal,
        operand0=0.0,
        op1=nl.subtract,
        operand1=0.5,
    )
    nisa.tensor_scalar(
        dst=part_sb,
        data=bits,
        op0=nl.bitwise_and,
        operand0=0x7FFFFFFF,
        op1=nl.right_shift,
        operand1=16,
    )
    nisa.tensor_tensor(dst=signed_sb, data1=part_sb, data2=sign_sb, op=nl.multiply)
    nisa.memset(dst=upper_sb, value=HIDDEN)
    nisa.tensor_copy_predicated(dst=upper_sb, src=signed_sb, predicate=seen_sb)
    nisa.tensor_scalar(dst=part_sb, data=bits, op0=nl.bitwise_and, operand0=0xFFFF)
    nisa.tensor_tensor(dst=lower_sb, data1=part_sb, data2=sign_sb, op=nl.multiply)
    return upper_sb, lower_sb


def _over_entries(column: Any, entries: int) -> Any:
    """A value a row, [P, G], as [P, G, F]."""
    return column.expand_dim(2).broadcast(2, entries)


def _row_counts(flags_sb: Any, mask: Any) -> Any:
    """PSUM fp32 [P, G]: flags bf16 [P, G, F] of each row, added over the partitions of mask."""
    partitions, rows = flags_sb.shape[0], flags_sb.shape[1]
    count_sb = nl.ndarray((partitions, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    count_psum = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.psum)
    # At most 128 entries a partition and row: exact in bf16.
    nisa.tensor_reduce(dst=count_sb, op=nl.add, data=flags_sb, axis=2)
    nisa.nc_matmul(dst=count_psum, stationary=mask, moving=count_sb)
    return count_psum


def _kth_largest(values_sb: Any, ones_sb: Any, count: int, lowest: float, bits: int) -> Any:
    """fp32 [P, G], on every partition: the count-th largest value of each row, at least lowest."""
    partitions, rows, entries = values_sb.shape
    found_sb = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    trial_sb = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    step_sb = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    reached_sb = nl.ndarray((partitions, rows, entries), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=found_sb, value=lowest)
    for bit in range(bits):
        step = 2.0 ** (bits - 2 - bit)
        nisa.tensor_scalar(dst=trial_sb, data=found_sb, op0=nl.add, operand0=step)
        nisa.tensor_tensor(
            dst=reached_sb,
            data1=values_sb,
            data2=_over_entries(trial_sb, entries),
            op=nl.greater_equal,
        )
        nisa.tensor_scalar(
            dst=step_sb,
            data=_row_counts(reached_sb, ones_sb),
            op0=nl.greater_equal,
            operand0=float(count),
            op1=nl.multiply,
            operand1=step,
        )
        nisa.tensor_tensor(dst=found_sb, data1=found_sb, data2=step_sb, op=nl.add)
    return found_sb


def _within_upper(upper_sb: Any, lower_sb: Any, kth_sb: Any) -> Any:
    """fp32 [P, G, F]: the lower half where the upper is the k-th; above it -HIDDEN, else HIDDEN."""
    shape = upper_sb.shape
    kth = _over_entries(kth_sb, shape[2])
    rank_sb = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    equal_sb = nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=rank_sb, data1=upper_sb, data2=kth, op=nl.greater)
    nisa.tensor_scalar(
        dst=rank_sb,
        data=rank_sb,
        op0=nl.multiply,
        operand0=-2.0 * HIDDEN,
        op1=nl.add,
        operand1=HIDDEN,
    )
    nisa.tensor_tensor(dst=equal_sb, data1=upper_sb, data2=kth, op=nl.equal)
    nisa.tensor_copy_predicated(dst=rank_sb, src=lower_sb, predicate=equal_sb)
    return rank_sb


def _first_equals(equal_sb: Any, wanted_sb: Any, before_sb: Any) -> Any:
    """fp32 [P, G, F]: 1 at the first `wanted` [P, G] of each row's equals, by entry."""
    partitions, rows, entries = equal_sb.shape
    keep_sb = nl.ndarray((partitions, rows, entries), dtype=nl.float32, buffer=nl.sbuf)
    number_sb = nl.ndarray((partitions, rows, entries), dtype=nl.float32, buffer=nl.sbuf)
    room_sb = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    # Numbers the equals of a partition from 1, afresh in each row, which starts with a factor 0.
    nisa.memset(dst=keep_sb, value=1.0)
    nisa.memset(dst=keep_sb[:, :, 0:1], value=0.0)
    nisa.tensor_tensor_scan(
        dst=number_sb.reshape((partitions, rows * entries)),
        data0=keep_sb.reshape((partitions, rows * entries)),
        data1=equal_sb.reshape((partitions, rows * entries)),
        initial=0.0,
        op0=nl.multiply,
        op1=nl.add,
    )
    nisa.tensor_tensor(
        dst=room_sb, data1=wanted_sb, data2=_row_counts(equal_sb, before_sb), op=nl.subtract
    )
    nisa.tensor_tensor(
        dst=number_sb, data1=number_sb, data2=_over_entries(room_sb, entries), op=nl.less_equal
    )
    nisa.tensor_tensor(dst=number_sb, data1=number_sb, data2=equal_sb, op=nl.multiply)
    return number_sb


def chosen_entries(upper_sb: Any, lower_sb: Any, count: int, before_sb: Any) -> Any:
    """fp32 [P, G, F]: 1 at each row's `count` largest entries, of equal ones the first.

    before_sb is prefix_mask's tile. Fewer where a row shows fewer.
    """
    partitions, rows, entries = upper_sb.shape
    ones_sb = nl.ndarray((partitions, partitions), dtype=nl.bfloat16, buffer=nl.sbuf)
    above_sb = nl.ndarray((partitions, rows, entries), dtype=nl.bfloat16, buffer=nl.sbuf)
    equal_sb = nl.ndarray((partitions, rows, entries), dtype=nl.bfloat16, buffer=nl.sbuf)
    wanted_sb = nl.ndarray((partitions, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    kth_sb = _kth_largest(upper_sb, ones_sb, count, _LOWEST_UPPER, _UPPER_BITS)
    rank_sb = _within_upper(upper_sb, lower_sb, kth_sb)
    last_sb = _kth_largest(rank_sb, ones_sb, count, _LOWEST_LOWER, _LOWER_BITS)
    last = _over_entries(last_sb, entries)
    nisa.tensor_tensor(dst=above_sb, data1=rank_sb, data2=last, op=nl.greater)
    nisa.tensor_tensor(dst=equal_sb, data1=rank_sb, data2=last, op=nl.equal)
    nisa.tensor_scalar(
        dst=wanted_sb,
        data=_row_counts(above_sb, ones_sb),
        op0=nl.multiply,
        operand0=-1.0,
        op1=nl.add,
        operand1=float(count),
    )
    chosen_sb = _first_equals(equal_sb, wanted_sb, before_sb)
    nisa.tensor_tensor(dst=chosen_sb, data1=chosen_sb, data2=above_sb, op=nl.add)
    return chosen_sb
