"""Matrix products and transposes."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


@wrong(r"dst is in sbuf: must be in psum")
def matmul_into_sbuf() -> None:
    nisa.nc_matmul(dst=fresh(4, 4), stationary=tile(8, 4), moving=tile(8, 4))


@wrong(r"stationary is in psum: must be in sbuf; move it with nisa\.tensor_copy")
def matmul_from_psum() -> None:
    nisa.nc_matmul(
        dst=fresh(4, 4, buffer=nl.psum), stationary=tile(8, 4, buffer=nl.psum), moving=tile(8, 4)
    )


@wrong(r"moving is \[8, 513\], free size 513: at most 512 columns")
def matmul_with_too_many_moving_columns() -> None:
    nisa.nc_matmul(dst=fresh(4, 513, buffer=nl.psum), stationary=tile(8, 4), moving=tile(8, 513))


@wrong(r"stationary is \[8, 129\], free size 129: at most 128 columns .* tile M by 128")
def matmul_with_too_many_stationary_columns() -> None:
    nisa.nc_matmul(dst=fresh(128, 4, buffer=nl.psum), stationary=tile(8, 129), moving=tile(8, 4))


@wrong(r"moving is 4 partitions: stationary has 8 partitions")
def matmul_with_unequal_contraction() -> None:
    nisa.nc_matmul(dst=fresh(4, 4, buffer=nl.psum), stationary=tile(8, 4), moving=tile(4, 4))


@wrong(r"dst is \[4, 5\]: \[4, 4\] = \[columns of stationary, of moving\]")
def matmul_into_the_wrong_shape() -> None:
    nisa.nc_matmul(dst=fresh(4, 5, buffer=nl.psum), stationary=tile(8, 4), moving=tile(8, 4))


@wrong(r"moving is bfloat16: stationary is float32: both or neither float32")
def matmul_of_mixed_float32() -> None:
    nisa.nc_matmul(
        dst=fresh(4, 4, buffer=nl.psum),
        stationary=tile(8, 4),
        moving=tile(8, 4, dtype=nl.bfloat16),
    )


@wrong(r"stationary is int32: one of float32, .*; tensor_copy it to bfloat16 or float32")
def matmul_of_integers() -> None:
    data = tile(8, 4, dtype=nl.int32)
    nisa.nc_matmul(dst=fresh(4, 4, buffer=nl.psum), stationary=data, moving=data)


@wrong(r"dst is bfloat16: float32: trn2 accumulates matmuls in fp32")
def matmul_into_bfloat16() -> None:
    data = tile(8, 4, dtype=nl.bfloat16)
    nisa.nc_matmul(dst=fresh(4, 4, dtype=nl.bfloat16, buffer=nl.psum), stationary=data, moving=data)


@wrong(r"dst is bytes 1024\.\.3071 of a partition: one PSUM bank of 2048 bytes")
def matmul_across_two_banks() -> None:
    psum = fresh(4, 1024, buffer=nl.psum)
    nisa.nc_matmul(dst=psum[:, 256:768], stationary=tile(8, 4), moving=tile(8, 512))


@wrong(r"tile_position is \(16, 0\): the row is a multiple of the tile size")
def tile_position_not_aligned() -> None:
    nisa.nc_matmul(
        dst=fresh(4, 4, buffer=nl.psum),
        stationary=tile(32, 4),
        moving=tile(32, 4),
        tile_position=(16, 0),
        tile_size=(32, 32),
    )


@wrong(r"stationary is float32: fp8 with double_row")
def double_row_of_float32() -> None:
    nisa.nc_matmul(
        dst=fresh(4, 4, buffer=nl.psum),
        stationary=tile(128, 2, 4),
        moving=tile(128, 2, 4),
        perf_mode=nisa.matmul_perf_mode.double_row,
    )


@wrong(r"dst is \[4, 8\]: \[8, 4\], the transpose of data")
def transpose_into_the_wrong_shape() -> None:
    nisa.nc_transpose(dst=fresh(4, 8, buffer=nl.psum), data=tile(4, 8))


@wrong(r"data is \[128, 129\]: at most 128x128 on the tensor engine")
def transpose_of_too_large_a_tile() -> None:
    nisa.nc_transpose(dst=fresh(128, 128, buffer=nl.psum), data=tile(128, 129))


@wrong(r"data is \[64, 8\]: at most 32x32 on the vector engine")
def vector_transpose_of_64_partitions() -> None:
    nisa.nc_transpose(dst=fresh(8, 64), data=tile(64, 8))


@wrong(r"dst is float32: the dtype of data, bfloat16")
def transpose_into_another_dtype() -> None:
    nisa.nc_transpose(dst=fresh(8, 4, buffer=nl.psum), data=tile(4, 8, dtype=nl.bfloat16))


@wrong(r"data is float8_e4m3: the Tensor engine transposes 16- and 32-bit elements")
def transpose_of_fp8() -> None:
    nisa.nc_transpose(
        dst=fresh(8, 4, dtype=nl.float8_e4m3, buffer=nl.psum),
        data=tile(4, 8, dtype=nl.float8_e4m3),
    )
