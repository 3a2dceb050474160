"""Shape arithmetic of kernels: how a problem is cut to partitions, banks and cores.

Called at trace time, so it stays inside the subset of Python that the older NKI parser accepts.
"""

from __future__ import annotations

from kernels.launch import nl

__all__ = ["PARTITIONS", "PSUM_BANK_FP32", "ceil_div", "core_share", "largest_fold"]

PARTITIONS = 128
# A matmul writes one PSUM bank: 2 KiB a partition.
PSUM_BANK_FP32 = 512


def ceil_div(total: int, unit: int) -> int:
    """How many units of this size cover the total."""
    return (total + unit - 1) // unit


def largest_fold(length: int, limit: int, unit: int) -> int:
    """Largest divisor c of length / unit with c <= limit; 1 where `unit` does not divide.

    A row of `length` elements folded by c lies on c partitions, `length / c` elements each, every
    piece a multiple of `unit`.
    """
    if length % unit != 0:
        return 1
    pieces = length // unit
    fold = 1
    for candidate in range(1, min(pieces, limit) + 1):
        if pieces % candidate == 0:
            fold = candidate
    return fold


def core_share(num_units: int) -> tuple[int, int]:
    """(first, number) of the contiguous units this physical core works on.

    At LNC=1 that is all of them; at LNC=2 the first core takes the larger half. A NEFF holds
    instructions of its own for each core, so the halves may differ.
    """
    if nl.program_ndim() == 0:
        return 0, num_units
    per_core = ceil_div(num_units, nl.num_programs(0))
    first = min(per_core * nl.program_id(0), num_units)
    return first, min(per_core, num_units - first)
