"""Tensors that no memory holds."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


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


@wrong(r"registry.py:\d+: .* live tiles in sbuf is 240000 bytes a partition .* sbuf has 212464")
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
