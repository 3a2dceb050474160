"""The 8-wide search instructions: max8, nc_find_index8, nc_match_replace8."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.instruction import (
    check_compute_operand,
    check_equal_partitions,
    check_same_shape,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["max8", "nc_find_index8", "nc_match_replace8"]

Array = npt.NDArray[Any]
_WIDTH = 8
_MIN_FREE, _MAX_FREE = 8, 16384


def _check_data(face: Face, operand: str) -> None:
    check_compute_operand(face, operand)
    if not _MIN_FREE <= face.free_size <= _MAX_FREE:
        refuse(
            operand,
            f"{face.free_size} elements a partition",
            f"{_MIN_FREE}..{_MAX_FREE}",
            "pad the tile with the smallest value, or search in parts",
        )


def _check_eight(face: Face, operand: str, data: Face) -> None:
    check_compute_operand(face, operand)
    check_equal_partitions(("data", data), (operand, face))
    if face.free_size != _WIDTH:
        refuse(operand, list(face.shape), f"{_WIDTH} elements a partition")


def _flat32(array: Array, slot: str) -> Array:
    values = as_float32(array, slot)
    return values.reshape(values.shape[0], -1)


@instruction
def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> None:
    """The 8 largest values of each partition, descending; 8 <= F <= 16384."""
    key = (dst.face, src.face)
    plan = _MAX8_PLANS[key]
    plan.run(dst.array, src.read("src"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_max8(dst: Face, src: Face) -> Plan:
    _check_data(src, "src")
    _check_eight(dst, "dst", src)

    def run(out: Array, source: Array) -> None:
        values = _flat32(source, "a")
        top = np.partition(values, values.shape[1] - _WIDTH, axis=1)[:, -_WIDTH:]
        top.sort(axis=1)
        store_float32(out, np.ascontiguousarray(top[:, ::-1]).reshape(dst.shape))

    return Plan("max8", "vector", run, dst, (src,))


@instruction
def nc_find_index8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> None:
    """Index of each of 8 values in its partition; equal values take successive occurrences.

    A value that is not there gives all ones (0xFFFF or 0xFFFFFFFF).
    """
    key = (dst.face, data.face, vals.face)
    plan = _FIND_INDEX_PLANS[key]
    plan.run(dst.array, data.read("data"), vals.read("vals"))
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_find_index(dst: Face, data: Face, vals: Face) -> Plan:
    _check_data(data, "data")
    _check_eight(vals, "vals", data)
    _check_eight(dst, "dst", data)
    if dst.dtype.name not in ("uint16", "uint32"):
        refuse("dst", dst.dtype, "uint16 or uint32")
    missing = np.iinfo(dst.dtype.carrier).max

    def run(out: Array, source: Array, wanted: Array) -> None:
        values = _flat32(source, "a")
        targets = _flat32(wanted, "b")
        found = np.full(targets.shape, missing, np.int64)
        for slot in range(_WIDTH):
            matches = values == targets[:, slot : slot + 1]
            # How many earlier slots ask for the same value: take that occurrence.
            rank = (targets[:, :slot] == targets[:, slot : slot + 1]).sum(axis=1)
            found[:, slot] = _occurrence(matches, rank, missing)
        np.copyto(out, found.reshape(dst.shape), casting="unsafe")

    return Plan("nc_find_index8", "vector", run, dst, (data, vals))


def _occurrence(matches: Array, rank: Array, missing: int) -> Array:
    """Position of the (rank+1)-th True of each row, `missing` where there is none."""
    if not rank.any():
        first = matches.argmax(axis=1)
        return np.where(matches[np.arange(len(first)), first], first, missing)
    order = np.cumsum(matches, axis=1)
    hit = matches & (order == (rank + 1)[:, None])
    return np.where(hit.any(axis=1), hit.argmax(axis=1), missing)


@instruction
def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> None:
    """dst = data with the first match of each of 8 values replaced by imm.

    Values are taken from slot 7 down to slot 0, so that of equal values the later slot gets the
    earlier position: the opposite of nc_find_index8. dst_idx receives the positions.
    """
    key = (
        dst.face,
        data.face,
        vals.face,
        None if dst_idx is None else dst_idx.face,
    )
    plan = _MATCH_REPLACE_PLANS[key]
    positions = plan.run(dst.array, data.read("data"), vals.read("vals"), imm)
    dst.wrote()
    if dst_idx is not None:
        np.copyto(dst_idx.array, positions.reshape(dst_idx.shape), casting="unsafe")
        dst_idx.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_match_replace(dst: Face, data: Face, vals: Face, dst_idx: Face | None) -> Plan:
    _check_data(data, "data")
    _check_eight(vals, "vals", data)
    check_compute_operand(dst, "dst")
    check_same_shape(("dst", dst), ("data", data))
    if dst_idx is not None:
        _check_eight(dst_idx, "dst_idx", data)
        if dst_idx.dtype.name not in ("uint16", "uint32"):
            refuse("dst_idx", dst_idx.dtype, "uint16 or uint32")

    def run(out: Array, source: Array, wanted: Array, imm: Any) -> Array:
        values = _flat32(source, "a").copy()
        targets = _flat32(wanted, "b")
        open_cells = np.ones(values.shape, np.bool_)
        rows = np.arange(values.shape[0])
        positions = np.full(targets.shape, -1, np.int64)
        for slot in range(_WIDTH - 1, -1, -1):
            matches = (values == targets[:, slot : slot + 1]) & open_cells
            first = matches.argmax(axis=1)
            hit = matches[rows, first]
            positions[hit, slot] = first[hit]
            # A replaced cell does not match again, whatever imm is.
            open_cells[rows[hit], first[hit]] = False
        values[~open_cells] = np.float32(imm)
        store_float32(out, values.reshape(dst.shape))
        return positions

    return Plan("nc_match_replace8", "vector", run, dst, (data, vals))


_MAX8_PLANS = Plans(_plan_max8)
_FIND_INDEX_PLANS = Plans(_plan_find_index)
_MATCH_REPLACE_PLANS = Plans(_plan_match_replace)
