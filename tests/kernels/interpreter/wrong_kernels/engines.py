"""Instructions on engines that lack them."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


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
