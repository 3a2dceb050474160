"""Operands in the wrong place, or on the wrong partitions."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import tile, wrong


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
