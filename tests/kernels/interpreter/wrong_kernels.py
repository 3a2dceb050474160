"""Kernels that the hardware or the compiler would refuse, with what the refusal must say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl

WRONG: dict[str, tuple[Callable[[], Any], str]] = {}


def wrong(expected: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a kernel body under its name; `expected` is a pattern of the message."""

    def register(body: Callable[[], Any]) -> Callable[[], Any]:
        WRONG[body.__name__] = (body, expected)
        return body

    return register


def tile(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """A tile full of ones (HBM: zeros written by DMA)."""
    return nl.full(shape, 1, dtype, buffer)


def fresh(*shape: int, dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """An unwritten tensor."""
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


# -- allocation ------------------------------------------------------------------------------


@wrong(r"nl\.ndarray: shape is \[256, 4\] with 256 partitions: sbuf has 128 partitions; tile")
def too_many_partitions() -> None:
    fresh(256, 4)


@wrong(r"one_dimensional|shape is \[128\]: at least 2 dimensions in sbuf")
def one_dimensional_tile() -> None:
    fresh(128)


@wrong(r"float32 \[128, 60000\], 240000 bytes a partition: sbuf has 212464 bytes a partition")
def tile_larger_than_sbuf() -> None:
    fresh(128, 60000)


@wrong(r"psum has 16384 bytes a partition")
def tile_larger_than_psum() -> None:
    fresh(128, 4097, buffer=nl.psum)


@wrong(
    r"wrong_kernels.py:\d+: .* live tiles in sbuf is 240000 bytes a partition .* sbuf has 212464"
)
def live_tiles_larger_than_sbuf() -> None:
    tiles = [tile(128, 20000) for _ in range(3)]
    for item in tiles:
        nisa.tensor_copy(dst=item[:, 0:1], src=item[:, 1:2])


@wrong(r"live tiles in psum is 18432 bytes a partition")
def live_tiles_larger_than_psum() -> None:
    tiles = [tile(128, 512, buffer=nl.psum) for _ in range(9)]
    for item in tiles:
        nisa.tensor_copy(dst=item[:, 0:1], src=item[:, 1:2])


@wrong(r"dtype is 'float64': a dtype of nki.language")
def unknown_dtype() -> None:
    fresh(128, 4, dtype="float64")


@wrong(r"buffer is 'sbuf'")
def buffer_by_string() -> None:
    fresh(128, 4, buffer="sbuf")


@wrong(r"shape is \[128, -1\]: extents of 0 or more")
def negative_extent() -> None:
    fresh(128, -1)


# -- places and partitions -------------------------------------------------------------------


@wrong(r"tensor_tensor: data1 is in private_hbm: must be in sbuf or psum; .*dma_copy")
def compute_on_hbm() -> None:
    nisa.tensor_tensor(dst=tile(4, 4), data1=tile(4, 4, buffer=nl.hbm), data2=tile(4, 4), op=nl.add)


@wrong(r"data is 10 partitions from partition 5: 10 partitions start at 0 or 32 or 64 or 96")
def start_partition_not_a_multiple_of_32() -> None:
    nisa.reciprocal(dst=tile(10, 4), data=tile(128, 4)[5:15])


@wrong(r"src is 64 partitions from partition 32: 64 partitions start at 0 or 64")
def sixty_four_partitions_from_32() -> None:
    nisa.tensor_copy(dst=tile(64, 4), src=tile(128, 4)[32:96])


@wrong(r"src is 65 partitions from partition 32: 65 partitions start at 0")
def sixty_five_partitions_not_from_0() -> None:
    nisa.tensor_copy(dst=tile(65, 4), src=tile(128, 4)[32:97])


@wrong(r"data is every 2th partition: adjacent partitions; gather the partitions by DMA")
def every_second_partition() -> None:
    nisa.reciprocal(dst=tile(4, 4), data=tile(8, 4)[0:8:2])


@wrong(r"dst is sbuf float32 \[4, 3\] with a stride of 0: every element of dst is written once")
def destination_that_repeats_a_cell() -> None:
    nisa.tensor_copy(dst=tile(4, 1).broadcast(1, 3), src=tile(4, 3))


@wrong(r"data2 is 1 partitions: dst has 128 partitions; partitions are not broadcast; replicate")
def partition_broadcast() -> None:
    nisa.tensor_tensor(dst=tile(128, 4), data1=tile(128, 4), data2=tile(1, 4), op=nl.add)


@wrong(r"operand0 is 1 partitions: data has 128 partitions")
def operand_partition_broadcast() -> None:
    nisa.tensor_scalar(dst=tile(128, 4), data=tile(128, 4), op0=nl.add, operand0=tile(1, 1))


@wrong(r"data2 is \[128, 1\] with 1 elements a partition: dst \[128, 4\] has 4; broadcast")
def implicit_free_broadcast() -> None:
    nisa.tensor_tensor(dst=tile(128, 4), data1=tile(128, 4), data2=tile(128, 1), op=nl.add)


@wrong(r"dim is 0: partitions cannot be broadcast on chip; replicate by DMA")
def broadcast_of_partitions() -> None:
    tile(1, 4).broadcast(0, 128)


@wrong(r"pattern is first pair \[0, 128\]: the partition stride of this storage is 4")
def ap_that_repeats_a_partition() -> None:
    tile(128, 4).ap(pattern=[[0, 128], [1, 4]])


@wrong(r"data2 is in psum: data1 and data2 may not both be in PSUM; tensor_copy one")
def both_inputs_in_psum() -> None:
    nisa.tensor_tensor(
        dst=tile(4, 4),
        data1=tile(4, 4, buffer=nl.psum),
        data2=tile(4, 4, buffer=nl.psum),
        op=nl.add,
    )


@wrong(r"data is 5 free dimensions: at most 4")
def five_free_dimensions() -> None:
    view = tile(4, 2, 3, 2, 3, 2).permute((0, 5, 3, 1, 4, 2))
    nisa.reciprocal(dst=tile(4, 72), data=view)


# -- unwritten memory --------------------------------------------------------------------------


@wrong(r"tensor_copy: src is sbuf float32 \[128, 4\] '' with 512 of 512 elements never written")
def read_of_a_fresh_tile() -> None:
    nisa.tensor_copy(dst=fresh(128, 4), src=fresh(128, 4))


@wrong(r"data1 is .*int32.* never written, first at \[0, 3\]")
def read_of_a_partly_written_integer_tile() -> None:
    source = fresh(8, 4, dtype=nl.int32)
    nisa.memset(dst=source[:, 0:3], value=1)
    nisa.tensor_tensor(dst=tile(8, 4, dtype=nl.int32), data1=source, data2=source, op=nl.add)


@wrong(r"dst \(accumulate=True\) is .*never written")
def accumulate_over_fresh_psum() -> None:
    nisa.nc_matmul(
        dst=fresh(4, 4, buffer=nl.psum),
        stationary=tile(8, 4),
        moving=tile(8, 4),
        accumulate=True,
    )


@wrong(r"dma_copy: src is .*private_hbm.* never written")
def dma_from_fresh_hbm() -> None:
    nisa.dma_copy(dst=fresh(4, 4), src=fresh(4, 4, buffer=nl.hbm))


@wrong(r"tensor_copy_predicated: dst is .*never written")
def predicated_copy_into_a_fresh_tile() -> None:
    nisa.tensor_copy_predicated(
        dst=fresh(4, 4), src=tile(4, 4), predicate=tile(4, 4, dtype=nl.uint8)
    )


@wrong(r"reads accumulators that were never reset")
def activation_reduces_into_a_stale_accumulator() -> None:
    nisa.activation(
        dst=fresh(4, 4),
        op=nl.exp,
        data=tile(4, 4),
        reduce_op=nl.add,
        reduce_res=fresh(4, 1),
        reduce_cmd=nisa.reduce_cmd.reduce,
    )


# -- operations and dtypes -----------------------------------------------------------------------


@wrong(r"op is nl\.divide: no ALU of trn2 has it; multiply by nisa\.reciprocal")
def divide() -> None:
    nisa.tensor_tensor(dst=tile(4, 4), data1=tile(4, 4), data2=tile(4, 4), op=nl.divide)


@wrong(r"op0 is nl\.mod: no ALU of trn2 has it")
def mod() -> None:
    nisa.tensor_scalar(dst=tile(4, 4), data=tile(4, 4), op0=nl.mod, operand0=2.0)


@wrong(r"op0 is nl\.abs_max: no ALU of trn2 has it")
def abs_max() -> None:
    nisa.tensor_scalar(dst=tile(4, 4), data=tile(4, 4), op0=nl.abs_max, operand0=2.0)


@wrong(r"op0 is nl\.relu: no ALU of trn2 has it; use nl\.maximum with 0")
def relu_in_tensor_scalar() -> None:
    nisa.tensor_scalar(dst=tile(4, 4), data=tile(4, 4), op0=nl.relu, operand0=0.0)


@wrong(r"engine is vector: nl\.power runs on gpsimd")
def power_on_the_vector_engine() -> None:
    nisa.tensor_tensor(
        dst=tile(4, 4),
        data1=tile(4, 4),
        data2=tile(4, 4),
        op=nl.power,
        engine=nisa.engine.vector,
    )


@wrong(r"data is float32: bitwise operations take integer dtypes; view the bits")
def bits_of_a_float() -> None:
    nisa.tensor_scalar(
        dst=tile(4, 4, dtype=nl.int32), data=tile(4, 4), op0=nl.bitwise_and, operand0=1
    )


@wrong(r"op1 is nl\.left_shift with nl\.add: bitwise and arithmetic operations do not mix")
def bits_and_arithmetic_in_one_instruction() -> None:
    data = tile(4, 4, dtype=nl.int32)
    nisa.tensor_scalar(dst=data, data=data, op0=nl.left_shift, operand0=1, op1=nl.add, operand1=1)


@wrong(r"operand0 is float: an int or a \(P, 1\) tile for nl\.left_shift")
def shift_by_a_float() -> None:
    data = tile(4, 4, dtype=nl.int32)
    nisa.tensor_scalar(dst=data, data=data, op0=nl.left_shift, operand0=1.0)


@wrong(r"operand0 is bfloat16: operand tiles of arithmetic are float32; tensor_copy it")
def operand_tile_in_bfloat16() -> None:
    nisa.tensor_scalar(
        dst=tile(4, 4), data=tile(4, 4), op0=nl.add, operand0=tile(4, 1, dtype=nl.bfloat16)
    )


@wrong(r"operand0 is \[4, 2\]: a constant or a \(P, 1\) tile; use tensor_tensor")
def operand_tile_with_two_columns() -> None:
    nisa.tensor_scalar(dst=tile(4, 2), data=tile(4, 2), op0=nl.add, operand0=tile(4, 2))


@wrong(r"data is float8_e4m3fn: engines of trn2 do not have it \(trn3\); view the bytes")
def ocp_fp8_on_an_engine() -> None:
    view = tile(4, 4, dtype=nl.uint8).view(nl.float8_e4m3fn)
    nisa.activation(dst=tile(4, 4), op=nl.copy, data=view)


@wrong(r"predicate is float32: uint8, uint16 or uint32")
def float_predicate() -> None:
    nisa.tensor_copy_predicated(dst=tile(4, 4), src=tile(4, 4), predicate=tile(4, 4))


@wrong(r"src is bfloat16: the dtype of dst, float32")
def predicated_copy_of_another_dtype() -> None:
    nisa.tensor_copy_predicated(
        dst=tile(4, 4), src=tile(4, 4, dtype=nl.bfloat16), predicate=tile(4, 4, dtype=nl.uint8)
    )


@wrong(r"value is 1\.5: an int in -2147483648\.\.2147483647 for int32")
def memset_of_an_integer_with_a_fraction() -> None:
    nisa.memset(dst=fresh(4, 4, dtype=nl.int32), value=1.5)


@wrong(r"value is 256: an int in 0\.\.255 for uint8")
def memset_out_of_range() -> None:
    nisa.memset(dst=fresh(4, 4, dtype=nl.uint8), value=256)


@wrong(r"op is .*add.*: one of abs, .*")
def activation_with_an_alu_operation() -> None:
    nisa.activation(dst=tile(4, 4), op=nl.add, data=tile(4, 4))


@wrong(r"scale is bfloat16: float32; tensor_copy it")
def activation_scale_in_bfloat16() -> None:
    nisa.activation(dst=tile(4, 4), op=nl.exp, data=tile(4, 4), scale=tile(4, 1, dtype=nl.bfloat16))


@wrong(r"reduce_op is maximum: nl\.add; the Scalar engine's accumulators only add")
def activation_that_reduces_by_maximum() -> None:
    nisa.activation_reduce(
        dst=tile(4, 4),
        op=nl.exp,
        data=tile(4, 4),
        reduce_op=nl.maximum,
        reduce_res=fresh(4, 1),
    )


@wrong(r"nl\.sin takes -3\.14\d+\.\.3\.14\d+; reduce the range first")
def sin_out_of_range() -> None:
    nisa.activation(dst=tile(4, 4), op=nl.sin, data=tile(4, 4), scale=4.0)


# -- engines -------------------------------------------------------------------------------------


@wrong(r"engine is tensor: runs on vector, gpsimd")
def tensor_tensor_on_the_tensor_engine() -> None:
    nisa.tensor_tensor(
        dst=tile(4, 4), data1=tile(4, 4), data2=tile(4, 4), op=nl.add, engine=nisa.engine.tensor
    )


@wrong(r"engine is gpsimd: GpSimd cannot reach PSUM; tensor_copy")
def gpsimd_reads_psum() -> None:
    nisa.tensor_tensor(
        dst=tile(4, 4),
        data1=tile(4, 4, buffer=nl.psum),
        data2=tile(4, 4),
        op=nl.add,
        engine=nisa.engine.gpsimd,
    )


@wrong(r"dst is in psum: must be in sbuf")
def iota_into_psum() -> None:
    nisa.iota(dst=fresh(4, 4, buffer=nl.psum), pattern=[[1, 4]])


@wrong(r"nisa\.nc_matmul_mx: called: not available on trn2 \(NeuronCore-v4 only\)")
def mx_matmul() -> None:
    nisa.nc_matmul_mx(
        dst=None, stationary=None, moving=None, stationary_scale=None, moving_scale=None
    )


@wrong(r"nisa\.exponential: called: not available on trn2")
def exponential() -> None:
    nisa.exponential(dst=fresh(4, 4), src=tile(4, 4))


@wrong(r"\.indirect is called: not available on trn2; use \.ap\(vector_offset")
def indirect_view() -> None:
    tile(4, 4).indirect(tile(4, 1, dtype=nl.uint32))


# -- tensor engine -------------------------------------------------------------------------------


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


# -- DMA -----------------------------------------------------------------------------------------


@wrong(r"src is in psum: DMA cannot reach PSUM; tensor_copy between PSUM and SBUF")
def dma_from_psum() -> None:
    nisa.dma_copy(dst=fresh(4, 4), src=tile(4, 4, buffer=nl.psum))


@wrong(r"src is \[4, 5\], 20 elements: dst \[4, 4\] has 16; slice both")
def dma_of_unequal_sizes() -> None:
    nisa.dma_copy(dst=fresh(4, 4), src=tile(4, 5))


@wrong(r"dge_mode is hwdge: no dtype change \(float32 to bfloat16\); use swdge")
def hardware_dma_that_casts() -> None:
    nisa.dma_copy(dst=fresh(4, 4, dtype=nl.bfloat16), src=tile(4, 4), dge_mode=nisa.dge_mode.hwdge)


@wrong(r"dge_mode is hwdge: vector offsets are served by swdge only")
def hardware_dma_that_gathers() -> None:
    table, index = tile(8, 4, buffer=nl.hbm), tile(4, 1, dtype=nl.uint32)
    view = table.ap(pattern=[[4, 4], [1, 4]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(dst=fresh(4, 4), src=view, dge_mode=nisa.dge_mode.hwdge)


@wrong(r"vector_offset is float32: int32 or uint32")
def gather_by_floats() -> None:
    tile(8, 4, buffer=nl.hbm).ap(pattern=[[4, 4], [1, 4]], vector_offset=tile(4, 1))


@wrong(r"vector_offset is on sbuf: an HBM tensor")
def gather_from_sbuf() -> None:
    tile(8, 4).ap(pattern=[[4, 4], [1, 4]], vector_offset=tile(4, 1, dtype=nl.uint32))


@wrong(r"indirect_dim is 1: 0 with vector_offset")
def gather_along_columns() -> None:
    tile(8, 4, buffer=nl.hbm).ap(
        pattern=[[4, 4], [1, 4]], vector_offset=tile(4, 1, dtype=nl.uint32), indirect_dim=1
    )


@wrong(r"src is a view with vector_offset: only DMA follows a vector offset")
def compute_on_a_gathered_view() -> None:
    table, index = tile(8, 4, buffer=nl.hbm), tile(4, 1, dtype=nl.uint32)
    view = table.ap(pattern=[[4, 4], [1, 4]], vector_offset=index)
    nisa.tensor_copy(dst=fresh(4, 4), src=view)


@wrong(r"scalar offset 8: 0\.\.7")
def scalar_offset_out_of_bounds() -> None:
    table, register = tile(8, 4, buffer=nl.hbm), nisa.register_alloc(8)
    nisa.dma_copy(dst=fresh(1, 4), src=table.ap(pattern=[[4, 1], [1, 4]], scalar_offset=register))


@wrong(r"src is float32: 2-byte dtypes")
def dma_transpose_of_4_bytes() -> None:
    nisa.dma_transpose(dst=fresh(8, 4), src=tile(4, 8))


@wrong(r"axes is \[0, 1\]: \[1, 0\] for 2 dimensions")
def dma_transpose_with_other_axes() -> None:
    data = tile(4, 8, dtype=nl.bfloat16)
    nisa.dma_transpose(dst=fresh(4, 8, dtype=nl.bfloat16), src=data, axes=(0, 1))


@wrong(r"dst is repeated indices: unique indices with unique_indices=True")
def scatter_add_with_repeated_rows() -> None:
    table, index = tile(8, 4, buffer=nl.hbm), tile(3, 1, dtype=nl.int32)
    rows = table.ap(pattern=[[4, 3], [1, 4]], vector_offset=index)
    nisa.dma_compute(dst=rows, srcs=[rows, tile(3, 4)], reduce_op=nl.add)


@wrong(r"srcs is 17 sources: 1\.\.16")
def dma_compute_of_17_sources() -> None:
    nisa.dma_compute(dst=fresh(4, 4), srcs=[tile(4, 4)] * 17, reduce_op=nl.add)


# -- reductions, searches, gathers ---------------------------------------------------------------


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


# -- views, registers, control -------------------------------------------------------------------


@wrong(r"index is 0:5 on dimension 1: dimension 1 has 4 elements; NKI does not clamp")
def slice_beyond_the_end() -> None:
    tile(4, 4)[:, 0:5]


@wrong(r"index is 4 on dimension 0: dimension 0 has 4 elements")
def index_beyond_the_end() -> None:
    tile(4, 4)[4]


@wrong(r"\.ap is called on a sliced view: documents disagree")
def ap_of_a_slice() -> None:
    tile(4, 8)[:, 2:4].ap(pattern=[[8, 4], [1, 2]])


@wrong(r"pattern is addresses 0\.\.32: the storage has 32 float32 elements")
def ap_beyond_the_storage() -> None:
    tile(4, 8).ap(pattern=[[8, 4], [1, 9]])


@wrong(r"shape is \[2, 16\]: the partition dimension 4 stays first on chip")
def reshape_of_partitions() -> None:
    tile(4, 8).reshape((2, 16))


@wrong(r"this view cannot be reshaped without a copy")
def reshape_that_needs_a_copy() -> None:
    tile(4, 2, 3).permute((0, 2, 1)).reshape((4, 6))


@wrong(r"dims is \[1, 0\]: the partition dimension stays first on chip; nc_transpose")
def permute_of_partitions() -> None:
    tile(4, 8).permute((1, 0))


@wrong(r"dtype is float32: the last dimension of .* does not divide into float32")
def view_of_an_odd_width() -> None:
    tile(4, 3, dtype=nl.bfloat16).view(nl.float32)


@wrong(r"register is used as a Python number: its value exists only at run time")
def branch_on_a_register() -> None:
    if nisa.register_alloc(1) > 0:
        tile(4, 4)


@wrong(r"tensor is used as a condition: its values exist only at run time")
def branch_on_a_tensor() -> None:
    if tile(1, 1):
        tile(4, 4)


@wrong(r"src is .*float32 \[1, 1\]: a 1x1 integer tile")
def register_from_a_float() -> None:
    nisa.register_load(nisa.register_alloc(), tile(1, 1))


@wrong(r"nl\.dynamic_range: called: removed in NKI 0\.7; use nl\.fori_loop")
def dynamic_range() -> None:
    for _ in nl.dynamic_range(4):
        pass


@wrong(r"core_barrier: called in a launch of one program: two programs; launch with kernel\[2\]")
def barrier_on_one_core() -> None:
    nisa.core_barrier(tile(4, 4), (0, 1))


@wrong(r"nisa\.topk: called: not executed by this interpreter")
def topk() -> None:
    nisa.topk(val_dst=None, idx_dst=None, src=None, n=8)


@wrong(r"data is None: a tensor of NKI")
def operand_that_is_no_tensor() -> None:
    nisa.reciprocal(dst=fresh(4, 4), data=None)


@wrong(r"arguments is missing a required argument: 'op'")
def missing_operand() -> None:
    nisa.tensor_tensor(dst=fresh(4, 4), data1=tile(4, 4), data2=tile(4, 4))


@wrong(r"arguments is got an unexpected keyword argument 'mask'")
def keyword_of_an_older_api() -> None:
    nisa.tensor_copy(dst=fresh(4, 4), src=tile(4, 4), mask=None)


@wrong(r"result is in sbuf: kernels return tensors in nl\.shared_hbm; dma_copy the tile")
def return_of_a_tile() -> Any:
    return tile(4, 4)
