"""What every instruction does before its own work, and the checks they share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from kernels.interpreter import limits
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import engine as Engine  # noqa: N812 - a type here
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "Engine",
    "NkiInstruction",
    "check_column",
    "check_compute_operand",
    "check_equal_partitions",
    "check_free_size",
    "check_integer",
    "check_regions",
    "check_same_shape",
    "check_scalar_or_column",
    "chosen_engine",
    "instruction",
]


class NkiInstruction:
    """Handle of an issued instruction."""

    __slots__ = ()

    def depends_on(self, *_: object) -> NkiInstruction:
        """Instructions run in program order here: every dependency holds already."""
        return self


_ISSUED = NkiInstruction()
Function = TypeVar("Function", bound=Callable[..., Any])
SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
_ON_CHIP = (SBUF, PSUM)


def instruction(function: Function) -> Function:
    """Decorate an instruction: takes its turn, names itself for messages, refuses wrong calls."""
    name = f"nisa.{function.__name__}"
    local = LOCAL

    @functools.wraps(function)
    def execute(*arguments: Any, **options: Any) -> Any:
        local.instruction = name
        program = local.program
        if program is None:
            refuse("", "called outside a kernel", "call it in a function decorated with nki.jit")
        program.step()
        try:
            result = function(*arguments, **options)
        except (TypeError, AttributeError) as error:
            _explain(function, arguments, options, error)
            raise
        if program.recorder is not None:
            program.recorder.add(program, function, arguments, options)
        return _ISSUED if result is None else result

    return execute  # type: ignore[return-value]


_TENSOR_OPERANDS = frozenset(
    [
        "dst",
        "src",
        "data",
        "data1",
        "data2",
        "data0",
        "stationary",
        "moving",
        "predicate",
        "on_true_tile",
        "src_buffer",
        "index",
        "indices",
        "vals",
        "val_dst",
        "idx_dst",
        "on_true",
        "bound0",
        "bound1",
        "src_seeds",
        "segment_ids",
    ]
)


def _explain(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    _: Exception,
) -> None:
    """Refuse if the caller's arguments are at fault; return if the fault is ours."""
    try:
        bound = inspect.signature(function).bind(*arguments, **options)
    except TypeError as mismatch:
        refuse("arguments", str(mismatch), str(inspect.signature(function)))
    for operand, value in bound.arguments.items():
        if operand in _TENSOR_OPERANDS and not isinstance(value, NkiTensor):
            refuse(operand, repr(value), "a tensor of NKI")


def chosen_engine(requested: Engine, default: Engine, allowed: tuple[Engine, ...]) -> str:
    """Name of the engine that executes.

    Raises:
        NkiValidationError: the instruction does not run on the requested engine.
    """
    if requested is Engine.unknown:
        return default.name
    if requested not in allowed:
        names = ", ".join(member.name for member in allowed)
        refuse("engine", getattr(requested, "name", repr(requested)), f"runs on {names}")
    return requested.name


def check_regions(face: Face, operand: str, allowed: tuple[MemoryRegion, ...]) -> None:
    """The operand lives in an allowed memory."""
    if face.region not in allowed:
        names = " or ".join(str(region) for region in allowed)
        refuse(
            operand,
            f"in {face.region}",
            f"must be in {names}",
            "move it with nisa.dma_copy" if face.region.is_hbm else "move it with nisa.tensor_copy",
        )


def check_compute_operand(
    face: Face, operand: str, allowed: tuple[MemoryRegion, ...] = _ON_CHIP
) -> None:
    """What a compute engine can address: place, partitions, dimensions and dtype."""
    if face.indirect == "vector":
        refuse(
            operand,
            "a view with vector_offset",
            "only DMA follows a vector offset",
            "gather into SBUF with nisa.dma_copy first",
        )
    check_regions(face, operand, allowed)
    start, count = face.start_partition, face.partitions
    if face.partition_step != 1 and face.free_size:
        refuse(
            operand,
            f"every {face.partition_step}th partition",
            "adjacent partitions",
            "gather the partitions by DMA",
        )
    if count > limits.MAX_PARTITIONS:
        refuse(operand, f"{count} partitions", f"at most {limits.MAX_PARTITIONS}")
    if count > 64:
        starts: tuple[int, ...] = (0,)
    elif count > 32:
        starts = (0, 64)
    else:
        starts = (0, 32, 64, 96)
    if start not in starts:
        refuse(
            operand,
            f"{count} partitions from partition {start}",
            f"{count} partitions start at {' or '.join(map(str, starts))}",
            "place the tile at a multiple of 32 partitions, or move it by DMA",
        )
    if len(face.free_shape) > limits.MAX_FREE_DIMS:
        runs = _merged_rank(face)
        if runs > limits.MAX_FREE_DIMS:
            refuse(operand, f"{runs} free dimensions", f"at most {limits.MAX_FREE_DIMS}")
    if face.dtype.min_target != "trn2":
        refuse(
            operand,
            face.dtype,
            f"engines of trn2 do not have it ({face.dtype.min_target})",
            "view the bytes as uint8, or re-encode at load",
        )


def _merged_rank(face: Face) -> int:
    rank, expected = 0, None
    for extent, stride in zip(reversed(face.shape[1:]), reversed(face.strides[1:]), strict=True):
        if extent == 1:
            continue
        if stride != expected:
            rank += 1
        expected = stride * extent
    return rank


def check_equal_partitions(*operands: tuple[str, Face]) -> None:
    """No partition broadcast: the compiler refuses what the official simulator accepts."""
    first_name, first = operands[0]
    for name, face in operands[1:]:
        if face.partitions != first.partitions:
            refuse(
                name,
                f"{face.partitions} partitions",
                f"{first_name} has {first.partitions} partitions; partitions are not broadcast",
                "replicate by DMA with stride 0 on dimension 0 of an HBM source, or by a K=1 "
                "matmul with ones",
            )


def check_free_size(*operands: tuple[str, Face]) -> None:
    """Equal elements a partition; shapes may differ."""
    first_name, first = operands[0]
    for name, face in operands[1:]:
        if face.free_size != first.free_size:
            refuse(
                name,
                f"{list(face.shape)} with {face.free_size} elements a partition",
                f"{first_name} {list(first.shape)} has {first.free_size}",
                "broadcast a free dimension with .broadcast or a stride-0 .ap",
            )


def check_same_shape(*operands: tuple[str, Face]) -> None:
    """Equal partitions and free sizes."""
    check_equal_partitions(*operands)
    check_free_size(*operands)


def check_integer(face: Face, operand: str) -> None:
    """Bitwise operations touch integers only."""
    if not face.dtype.is_integer:
        refuse(
            operand,
            face.dtype,
            "bitwise operations take integer dtypes",
            "view the bits with .view(nl.uint32) or the like",
        )


def check_column(face: Face, operand: str, data: Face) -> None:
    """A (P, 1) tile beside `data`."""
    check_compute_operand(face, operand)
    check_equal_partitions(("data", data), (operand, face))
    if face.free_size != 1:
        refuse(operand, list(face.shape), f"shape [{data.partitions}, 1]")


def check_scalar_or_column(operand: Any, name: str, data: Face) -> None:
    """A number (its type is given) or a (P, 1) fp32 tile beside `data`."""
    if isinstance(operand, Face):
        check_column(operand, name, data)
        if operand.dtype.name != "float32":
            refuse(name, operand.dtype, "operand tiles are float32", "tensor_copy it to float32")
    elif not issubclass(operand, int | float | np.number):
        refuse(name, operand.__name__, "a number or a (P, 1) float32 tile")
