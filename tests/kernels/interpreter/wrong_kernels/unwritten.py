"""Reads and accumulation of memory that nothing wrote."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


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
