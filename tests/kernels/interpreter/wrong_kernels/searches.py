"""Reductions, searches and gathers."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


@wrong(r"axis is \[1\]: the trailing free axes, without the partition axis 0; permute")
def reduction_of_a_middle_axis() -> None:
    nisa.tensor_reduce(dst=fresh(4, 6), op=nl.add, data=tile(4, 5, 6), axis=1)


@wrong(r"axis is \[0\]: the trailing free axes|axis is \[0, 1\]: the trailing free axes")
def reduction_of_partitions() -> None:
    nisa.tensor_reduce(dst=fresh(1, 1), op=nl.add, data=tile(1, 5), axis=(0, 1))


@wrong(r"dst is \[4, 2\]: 1 elements a partition remain of \[4, 5\]")
def reduction_into_the_wrong_shape() -> None:
    nisa.tensor_reduce(dst=fresh(4, 2), op=nl.add, data=tile(4, 5), axis=1)


@wrong(r"src is 7 elements a partition: 8\.\.16384; pad")
def max8_of_seven() -> None:
    nisa.max8(dst=fresh(4, 8), src=tile(4, 7))


@wrong(r"src is 16385 elements a partition: 8\.\.16384")
def max8_of_too_many() -> None:
    nisa.max8(dst=fresh(4, 8), src=tile(4, 16385))


@wrong(r"dst is int32: uint16 or uint32")
def find_index_into_signed_integers() -> None:
    nisa.nc_find_index8(dst=fresh(4, 8, dtype=nl.int32), data=tile(4, 9), vals=tile(4, 8))


@wrong(r"vals is \[4, 7\]: 8 elements a partition")
def find_index_of_seven_values() -> None:
    nisa.nc_find_index8(dst=fresh(4, 8, dtype=nl.uint32), data=tile(4, 9), vals=tile(4, 7))


@wrong(r"shuffle_mask is 16 entries: 32")
def shuffle_with_a_short_mask() -> None:
    nisa.nc_stream_shuffle(dst=fresh(32, 4), src=tile(32, 4), shuffle_mask=[0] * 16)


@wrong(r"shuffle_mask is 32: 0\.\.31, or 255 to keep")
def shuffle_across_groups() -> None:
    nisa.nc_stream_shuffle(dst=fresh(32, 4), src=tile(32, 4), shuffle_mask=[32] * 32)


@wrong(r"indices is 9: 0\.\.4")
def gather_index_out_of_bounds() -> None:
    nisa.nc_n_gather(dst=fresh(4, 2), data=tile(4, 5), indices=nl.full((4, 2), 9, nl.uint32))


@wrong(r"data is 513 elements a partition: 1\.\.512")
def bn_stats_of_too_many() -> None:
    nisa.bn_stats(dst=fresh(4, 6), data=tile(4, 513))


@wrong(r"on_false_value is 0\.0: -3\.4028234663852886e\+38")
def range_select_with_another_false_value() -> None:
    nisa.range_select(
        dst=fresh(4, 8),
        on_true_tile=tile(4, 8),
        comp_op0=nl.less,
        comp_op1=nl.less,
        bound0=tile(4, 1),
        bound1=tile(4, 1),
        on_false_value=0.0,
    )


@wrong(r"pattern is 5 elements: dst \[4, 4\] has 4 a partition")
def iota_of_the_wrong_size() -> None:
    nisa.iota(dst=fresh(4, 4), pattern=[[1, 5]])
