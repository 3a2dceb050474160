"""Gathers within partitions, and the shuffle of partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.instruction import (
    SBUF,
    check_compute_operand,
    check_equal_partitions,
    check_free_size,
    check_same_shape,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["local_gather", "nc_n_gather", "nc_stream_shuffle"]

Array = npt.NDArray[Any]
_KEEP = 255
_QUADRANT = 32
_CORE_PARTITIONS = 16


@instruction
def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None
) -> None:
    """In each group of 32 partitions dst[i] = src[mask[i]]; 255 leaves dst[i] as it is."""
    mask = tuple(int(item) for item in shuffle_mask)
    plan = _SHUFFLE_PLANS[dst.face, src.face, mask]
    kept, rows, sources = plan.run(dst, src)
    if not kept:
        plan_rows = src.read("src")[sources]
        dst.array[...] = plan_rows.reshape(dst.shape)
        dst.wrote()
    else:
        source = src.read("src")
        for row, origin in zip(rows, sources, strict=True):
            view = dst[int(row)]
            view.array[...] = source[origin].reshape(view.shape)
            view.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_shuffle(dst: Face, src: Face, mask: tuple[int, ...]) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(src, "src")
    check_free_size(("dst", dst), ("src", src))
    if dst.dtype != src.dtype:
        refuse("dst", dst.dtype, f"the dtype of src, {src.dtype}")
    if len(mask) != _QUADRANT:
        refuse("shuffle_mask", f"{len(mask)} entries", f"{_QUADRANT}")
    bad = [item for item in mask if item != _KEEP and not 0 <= item < _QUADRANT]
    if bad:
        refuse("shuffle_mask", bad[0], f"0..{_QUADRANT - 1}, or {_KEEP} to keep")
    rows, sources = [], []
    for row in range(dst.partitions):
        item = mask[row % _QUADRANT]
        if item == _KEEP:
            continue
        origin = row // _QUADRANT * _QUADRANT + item
        if origin >= src.partitions:
            refuse(
                "shuffle_mask",
                f"row {origin} for dst row {row}",
                f"src has {src.partitions} partitions",
            )
        rows.append(row)
        sources.append(origin)
    kept = dst.partitions - len(rows)

    def run(_: NkiTensor, __: NkiTensor) -> tuple[int, list[int], list[int]]:
        return kept, rows, sources

    return Plan("nc_stream_shuffle", "vector", run, dst, (src,))


@instruction
def nc_n_gather(
    dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> None:
    """dst[p, i] = data[p, indices[p, i]], indices into the flattened free axes."""
    plan = _N_GATHER_PLANS[dst.face, data.face, indices.face]
    plan.run(dst.array, data.read("data"), indices.read("indices"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_n_gather(dst: Face, data: Face, indices: Face) -> Plan:
    for operand, face in (("dst", dst), ("data", data), ("indices", indices)):
        check_compute_operand(face, operand, (SBUF,))
    check_same_shape(("indices", indices), ("dst", dst))
    check_equal_partitions(("data", data), ("indices", indices))
    if indices.dtype.name != "uint32":
        refuse("indices", indices.dtype, "uint32")
    if dst.dtype != data.dtype:
        refuse("dst", dst.dtype, f"the dtype of data, {data.dtype}")

    def run(out: Array, source: Array, index: Array) -> None:
        wanted = index.astype(np.int64).reshape(indices.partitions, -1)
        if wanted.size and wanted.max() >= data.free_size:
            refuse("indices", int(wanted.max()), f"0..{data.free_size - 1}")
        flat = source.reshape(data.partitions, -1)
        out[...] = np.take_along_axis(flat, wanted, axis=1).reshape(dst.shape)

    return Plan("nc_n_gather", "gpsimd", run, dst, (data, indices))


@instruction
def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> None:
    """Each 16 partitions share one index list: their index tiles, partition by partition.

    dst[p, i * n : (i + 1) * n] = src_buffer[p, list[i] * n : …] with n = num_elem_per_idx.
    """
    key = (dst.face, src_buffer.face, index.face, num_elem_per_idx, num_valid_indices)
    plan = _LOCAL_GATHER_PLANS[key]
    plan.run(dst.array, src_buffer.read("src_buffer"), index.read("index"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_local_gather(
    dst: Face, src: Face, index: Face, per_index: int, num_valid: int | None
) -> Plan:
    for operand, face in (("dst", dst), ("src_buffer", src), ("index", index)):
        check_compute_operand(face, operand, (SBUF,))
    check_equal_partitions(("src_buffer", src), ("dst", dst), ("index", index))
    if index.dtype.name != "uint16":
        refuse("index", index.dtype, "uint16")
    if src.partitions % _CORE_PARTITIONS:
        refuse("src_buffer", f"{src.partitions} partitions", "a multiple of 16")
    if dst.dtype != src.dtype:
        refuse("dst", dst.dtype, f"the dtype of src_buffer, {src.dtype}")
    listed = index.free_size * _CORE_PARTITIONS
    count = listed if num_valid is None else num_valid
    if not 0 < count <= listed:
        refuse("num_valid_indices", count, f"1..{listed}")
    if dst.free_size != count * per_index:
        refuse("dst", list(dst.shape), f"{count} x {per_index} elements a partition")

    def run(out: Array, source: Array, indices: Array) -> None:
        flat = source.reshape(src.partitions, -1)
        if flat.shape[1] % per_index:
            refuse("num_elem_per_idx", per_index, f"divides {flat.shape[1]}")
        groups = flat.reshape(src.partitions, -1, per_index)
        result = np.empty((src.partitions, count, per_index), flat.dtype)
        for start in range(0, src.partitions, _CORE_PARTITIONS):
            rows = slice(start, start + _CORE_PARTITIONS)
            wanted = indices[rows].reshape(_CORE_PARTITIONS, -1).T.reshape(-1)[:count]
            if int(wanted.max()) >= groups.shape[1]:
                refuse("index", int(wanted.max()), f"0..{groups.shape[1] - 1}")
            result[rows] = groups[rows][:, wanted.astype(np.int64)]
        out[...] = result.reshape(dst.shape)

    return Plan("local_gather", "gpsimd", run, dst, (src, index))


_SHUFFLE_PLANS = Plans(_plan_shuffle)
_N_GATHER_PLANS = Plans(_plan_n_gather)
_LOCAL_GATHER_PLANS = Plans(_plan_local_gather)
