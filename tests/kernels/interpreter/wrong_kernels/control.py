"""Views, registers and control."""

from __future__ import annotations

from typing import Any

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


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
