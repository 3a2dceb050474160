"""Transfers."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


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
