"""The Tensor engine: matmul and transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter import limits
from kernels.interpreter.casts import as_float32, decode_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import engine, matmul_perf_mode
from kernels.interpreter.isa.instruction import (
    PSUM,
    SBUF,
    check_compute_operand,
    check_equal_partitions,
    check_regions,
    chosen_engine,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.scratch import scratch
from kernels.interpreter.tensor import NkiTensor

__all__ = ["check_one_bank", "nc_matmul", "nc_transpose"]

Array = npt.NDArray[Any]
_MATMUL_DTYPES = ("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")


@instruction
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> None:
    """dst[M, N] (+)= stationary[K, M].T @ moving[K, N]; K on the partitions of both.

    accumulate: None overwrites locations that were never written and adds to the others, True
    adds (to unwritten locations: refused), False overwrites.
    """
    key = (
        dst.face,
        stationary.face,
        moving.face,
        is_transpose,
        tuple(tile_position or ()),
        tuple(tile_size or ()),
        perf_mode,
    )
    plan = _MATMUL_PLANS[key]
    left = _operand(stationary, "stationary", is_stationary_onezero)
    right = _operand(moving, "moving", is_moving_onezero)
    out = dst.array
    if accumulate is False or (accumulate is None and not dst.storage.was_touched):
        plan.run(out, left, right)
    elif accumulate is True:
        out = dst.read("dst (accumulate=True)")
        plan.run(out, left, right, _add)
    elif accumulate is None:
        written = dst.written()
        plan.run(out, left, right, _add if written.all() else _adder_where(written))
    else:
        refuse("accumulate", repr(accumulate), "None, True or False")
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _operand(tensor: NkiTensor, operand: str, onezero: bool) -> Array:
    """The operand in fp32. A tile's decoded copy is kept until the tile is written again."""
    source = tensor.read(operand)
    if onezero and not np.isin(source.astype(np.float32), (0.0, 1.0)).all():
        refuse(operand, "values other than 0 and 1", f"is_{operand}_onezero=True promises them")
    # bfloat16 widens faster than a kept copy is found.
    if source.dtype.name in ("float32", "bfloat16") or tensor.runtime_offset is not None:
        return as_float32(source, operand)
    storage = tensor.storage
    tiles = storage.float_tiles
    if tiles is None or tiles[0] != storage.version:
        tiles = storage.float_tiles = (storage.version, {})
    key = (tensor.offset, tensor.face)
    decoded: Array | None = tiles[1].get(key)
    if decoded is None:
        decoded = tiles[1][key] = np.empty(source.shape, np.float32)
        decode_float32(source, decoded)
    return decoded


def _add(out: Array, product: Array) -> None:
    np.add(out, product, out=out)


def _adder_where(written: Array) -> Callable[[Array, Array], None]:
    def add_where_written(out: Array, product: Array) -> None:
        np.copyto(out, np.where(written, out + product, product))

    return add_where_written


def _plan_matmul(
    dst: Face,
    stationary: Face,
    moving: Face,
    is_transpose: bool,
    tile_position: tuple[int, ...],
    tile_size: tuple[int, ...],
    perf_mode: Any,
) -> Plan:
    double_row = _is_double_row(perf_mode)
    for operand, face in (("stationary", stationary), ("moving", moving)):
        check_compute_operand(face, operand, (SBUF,))
        if face.dtype.name not in _MATMUL_DTYPES:
            refuse(
                operand,
                face.dtype,
                f"one of {', '.join(_MATMUL_DTYPES)}",
                "tensor_copy it to bfloat16 or float32",
            )
    check_compute_operand(dst, "dst", (PSUM,))
    check_equal_partitions(("stationary", stationary), ("moving", moving))
    if (stationary.dtype.name == "float32") != (moving.dtype.name == "float32"):
        refuse("moving", moving.dtype, f"stationary is {stationary.dtype}: both or neither float32")
    rows, columns = _matmul_shape(stationary, moving, double_row)
    _check_matmul_sizes(dst, stationary, moving, rows, columns)
    _check_tiling(stationary, dst, tile_position, tile_size, double_row, rows)
    if is_transpose:
        if dst.dtype != moving.dtype:
            refuse("dst", dst.dtype, f"the dtype of moving ({moving.dtype}) with is_transpose")
    elif dst.dtype.name != "float32":
        refuse(
            "dst",
            dst.dtype,
            "float32: trn2 accumulates matmuls in fp32",
            "copy to the narrow dtype when leaving PSUM",
        )
    contraction = stationary.partitions * (2 if double_row else 1)
    run = _matmul_runner(dst, contraction, rows, columns, double_row)
    passes = 4 if stationary.dtype.name == "float32" else 1
    return Plan(
        "nc_matmul",
        "tensor",
        run,
        dst,
        (stationary, moving),
        cycles=float(passes * columns + 64),
        flops=2 * contraction * rows * columns,
    )


def _is_double_row(perf_mode: Any) -> bool:
    name = getattr(perf_mode, "name", perf_mode)
    if name in ("none", None):
        return False
    if name == "double_row":
        return True
    refuse("perf_mode", repr(perf_mode), "none or double_row on trn2")


def _matmul_shape(stationary: Face, moving: Face, double_row: bool) -> tuple[int, int]:
    if not double_row:
        return stationary.free_size, moving.free_size
    for operand, face in (("stationary", stationary), ("moving", moving)):
        if len(face.shape) != 3 or face.shape[1] != 2:
            refuse(operand, list(face.shape), "[K, 2, …] with double_row")
        if not face.dtype.name.startswith("float8"):
            refuse(operand, face.dtype, "fp8 with double_row")
    return stationary.shape[2], moving.shape[2]


def _check_matmul_sizes(dst: Face, stationary: Face, moving: Face, rows: int, columns: int) -> None:
    if rows > limits.MATMUL_MAX_STATIONARY:
        refuse(
            "stationary",
            f"{list(stationary.shape)}, free size {rows}",
            f"at most {limits.MATMUL_MAX_STATIONARY} columns (nl.tile_size.gemm_stationary_fmax)",
            "tile M by 128",
        )
    if columns > limits.MATMUL_MAX_MOVING:
        refuse(
            "moving",
            f"{list(moving.shape)}, free size {columns}",
            f"at most {limits.MATMUL_MAX_MOVING} columns (nl.tile_size.gemm_moving_fmax)",
            "tile N by 512",
        )
    if dst.partitions != rows or dst.free_size != columns:
        refuse("dst", list(dst.shape), f"[{rows}, {columns}] = [columns of stationary, of moving]")
    check_one_bank(dst)


def check_one_bank(dst: Face) -> None:
    """A matmul's result lies in one PSUM bank."""
    steps = zip(dst.strides[1:], dst.shape[1:], strict=True)
    reach = sum(stride * (extent - 1) for stride, extent in steps if extent > 1) + 1
    last = dst.start_bytes + reach * dst.dtype.itemsize - 1
    if last // limits.PSUM_BANK_BYTES != dst.start_bytes // limits.PSUM_BANK_BYTES:
        refuse(
            "dst",
            f"bytes {dst.start_bytes}..{last} of a partition",
            f"one PSUM bank of {limits.PSUM_BANK_BYTES} bytes",
            "write at most 512 fp32 elements, aligned to a bank",
        )


def _check_tiling(
    stationary: Face,
    dst: Face,
    position: tuple[int, ...],
    size: tuple[int, ...],
    double_row: bool,
    rows: int,
) -> None:
    if not position and not size:
        return
    if len(position) != 2 or len(size) != 2:
        refuse(
            "tile_position", (position, size), "(row, column) for both tile_position and tile_size"
        )
    for label, start, extent in zip(("row", "column"), position, size, strict=True):
        if extent not in (32, 64, 128):
            refuse("tile_size", size, "32, 64 or 128 rows and columns")
        if start % extent or start + extent > 128:
            refuse("tile_position", position, f"the {label} is a multiple of the tile size {size}")
    if double_row and size[1] != 128:
        refuse("tile_size", size, "no column tiling with double_row")
    if stationary.partitions > size[0] or rows > size[1]:
        refuse("stationary", list(stationary.shape), f"fits the tile {size}")
    if stationary.start_partition != position[0]:
        refuse(
            "stationary",
            f"starts at partition {stationary.start_partition}",
            f"tile_position row {position[0]}",
        )
    if dst.start_partition != position[1]:
        refuse(
            "dst",
            f"starts at partition {dst.start_partition}",
            f"tile_position column {position[1]}",
        )


def _matmul_runner(
    dst: Face, contraction: int, rows: int, columns: int, double_row: bool
) -> Callable[..., None]:
    direct = dst.dtype.name == "float32" and len(dst.shape) == 2 and dst.strides[1] == 1

    def run(out: Array, left: Array, right: Array, combine: Any = None) -> None:
        if double_row:
            # Logical k of (p, j) is j * 128 + p for both operands.
            left, right = left.transpose(1, 0, 2), right.transpose(1, 0, 2)
        a = left.reshape(contraction, rows)
        b = right.reshape(contraction, columns)
        if direct and combine is None:
            np.matmul(a.T, b, out=out)
            return
        product = scratch("product", (rows, columns))
        np.matmul(a.T, b, out=product)
        shaped = product.reshape(dst.shape)
        if combine is not None:
            combine(out, shaped)
        else:
            store_float32(out, shaped)

    return run


# -- nc_transpose ---------------------------------------------------------------------------


@instruction
def nc_transpose(
    dst: NkiTensor,
    data: NkiTensor,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> None:
    """dst[F, P] = data[P, F].T on the Tensor (to PSUM, 128x128) or Vector engine (32x32)."""
    key = (dst.face, data.face, engine)
    plan = _TRANSPOSE_PLANS[key]
    plan.run(dst.array, data.read("data"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_transpose(dst: Face, data: Face, requested: engine) -> Plan:
    default = engine.tensor
    if dst.region is SBUF or data.region is PSUM:
        default = engine.vector
    name = chosen_engine(requested, default, (engine.tensor, engine.vector))
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    rows, columns = data.partitions, data.free_size
    if name == "tensor":
        check_regions(data, "data", (SBUF,))
        check_regions(dst, "dst", (PSUM,))
        largest = limits.MAX_PARTITIONS
        check_one_bank(dst)
    else:
        largest = 32
    if rows > largest or columns > largest:
        refuse(
            "data",
            [rows, columns],
            f"at most {largest}x{largest} on the {name} engine",
            "use the Tensor engine with dst in PSUM, or tile",
        )
    if dst.partitions != columns or dst.free_size != rows:
        refuse("dst", list(dst.shape), f"[{columns}, {rows}], the transpose of data")
    if dst.dtype != data.dtype:
        refuse("dst", dst.dtype, f"the dtype of data, {data.dtype}")
    if name == "tensor" and data.dtype.name not in _MATMUL_DTYPES:
        refuse(
            "data",
            data.dtype,
            f"the Tensor engine moves {', '.join(_MATMUL_DTYPES)}",
            "tensor_copy integers to float32 (exact below 2**24)",
        )
    if name == "tensor" and data.dtype.device_itemsize == 1:
        refuse(
            "data",
            data.dtype,
            "the Tensor engine transposes 16- and 32-bit elements",
            "transpose 1-byte weights on the host",
        )
    shape = dst.shape

    def run(out: Array, source: Array) -> None:
        np.copyto(out, source.reshape(rows, columns).T.reshape(shape))

    return Plan("nc_transpose", name, run, dst, (data,), cycles=float(rows + 64))


_MATMUL_PLANS = Plans(_plan_matmul)
_TRANSPOSE_PLANS = Plans(_plan_transpose)
