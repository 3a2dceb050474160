"""What a launch did: instructions, bytes, memory peaks, and an estimate of engine time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.interpreter import limits
from kernels.interpreter.errors import NkiValidationError
from kernels.interpreter.memory import Lifetime, MemoryRegion
from kernels.interpreter.program import Launch, Program
from kernels.interpreter.tensor import NkiTensor

__all__ = ["EngineUse", "LaunchSummary", "UnwrittenOutput", "summarise", "unwritten_outputs"]

# Documented rates of trn2; one element a partition and cycle. Source: nki.md §1.2.
_CLOCK_HZ = {"tensor": 2.4e9, "vector": 0.96e9, "scalar": 1.2e9, "gpsimd": 1.2e9}
_DMA_BYTES_PER_SECOND = 362e9


@dataclass(frozen=True, slots=True)
class EngineUse:
    """One engine's share of a launch, over all programs.

    Attributes:
        estimated_ns: busy time of one core by the documented rates. An estimate, never device
            time.
    """

    engine: str
    instructions: int
    read_bytes: int
    write_bytes: int
    flops: int
    estimated_ns: float


@dataclass(frozen=True, slots=True)
class UnwrittenOutput:
    """An output some of whose elements no instruction wrote.

    Attributes:
        position: which result, "result" or "result[1]".
        first: index of the first unwritten element.
    """

    position: str
    shape: tuple[int, ...]
    num_unwritten: int
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchSummary:
    """Of one launch.

    Attributes:
        sbuf_peak_bytes, psum_peak_bytes: high-water of live bytes in one partition.
        small_dma_rows: descriptor rows below 2 KiB, of dma_rows.
        estimated_ns: the busiest engine's estimate: a roofline, never device time.
        instructions: executions by instruction name.
        trace: the instructions in order where the launch kept them, one dict each.
    """

    kernel_name: str
    num_programs: int
    engines: dict[str, EngineUse]
    instructions: dict[str, int]
    sbuf_peak_bytes: int
    psum_peak_bytes: int
    dma_rows: int
    small_dma_rows: int
    estimated_ns: float
    unwritten: tuple[UnwrittenOutput, ...]
    trace: tuple[dict[str, Any], ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but leaves little room on the device."""
        if self.sbuf_peak_bytes <= limits.SBUF_WARN_BYTES:
            return ()
        return (
            f"SBUF peak {self.sbuf_peak_bytes} B a partition is above the safe budget of "
            f"{limits.SBUF_WARN_BYTES} B",
        )

    @property
    def num_instructions(self) -> int:
        """All instructions."""
        return sum(self.instructions.values())

    @property
    def total_bytes(self) -> int:
        """Bytes the DMA engines moved."""
        dma = self.engines.get("dma")
        return 0 if dma is None else dma.write_bytes


def unwritten_outputs(result: Any, position: str = "result") -> list[UnwrittenOutput]:
    """Those of the returned tensors that are not whole."""
    if isinstance(result, NkiTensor):
        if result.storage.is_fully_written or result.size == 0:
            return []
        written = result.written()
        missing = np.argwhere(~written)
        if not len(missing):
            return []
        first = tuple(int(i) for i in missing[0])
        return [UnwrittenOutput(position, result.shape, len(missing), first)]
    if isinstance(result, tuple | list):
        parts = [unwritten_outputs(item, f"{position}[{i}]") for i, item in enumerate(result)]
        return [output for part in parts for output in part]
    if isinstance(result, dict):
        parts = [unwritten_outputs(item, f"{position}[{k!r}]") for k, item in result.items()]
        return [output for part in parts for output in part]
    return []


def summarise(launch: Launch, unwritten: list[UnwrittenOutput]) -> LaunchSummary:
    """The summary of a finished launch.

    Raises:
        NkiValidationError: live tiles exceed what a partition of SBUF or PSUM holds.
    """
    engines = _engine_uses(launch)
    names: dict[str, int] = {}
    for program in launch.programs:
        for plan, count in program.counts.items():
            names[plan.instruction] = names.get(plan.instruction, 0) + count
    return LaunchSummary(
        launch.kernel_name,
        launch.num_programs,
        engines,
        names,
        max(_peak(program, MemoryRegion.sbuf) for program in launch.programs),
        max(_peak(program, MemoryRegion.psum) for program in launch.programs),
        sum(program.dma_rows for program in launch.programs),
        sum(program.small_dma_rows for program in launch.programs),
        max((use.estimated_ns for use in engines.values()), default=0.0),
        tuple(unwritten),
        _trace(launch),
    )


def _engine_uses(launch: Launch) -> dict[str, EngineUse]:
    totals: dict[str, list[float]] = {}
    for program in launch.programs:
        for plan, count in program.counts.items():
            total = totals.setdefault(plan.engine, [0, 0, 0, 0, 0.0])
            total[0] += count
            total[1] += count * plan.read_bytes
            total[2] += count * plan.write_bytes
            total[3] += count * plan.flops
            if plan.engine in _CLOCK_HZ:
                total[4] += count * plan.cycles / _CLOCK_HZ[plan.engine] * 1e9
            else:
                moved = max(plan.read_bytes, plan.write_bytes)
                total[4] += count * moved / _DMA_BYTES_PER_SECOND * 1e9
    return {
        engine: EngineUse(
            engine,
            int(total[0]),
            int(total[1]),
            int(total[2]),
            int(total[3]),
            total[4] / launch.num_programs,
        )
        for engine, total in sorted(totals.items())
    }


def _peak(program: Program, region: MemoryRegion) -> int:
    """High-water of live bytes a partition; a tile lives from its first to its last use."""
    events: list[tuple[int, int, Lifetime]] = []
    for life in program.lifetimes:
        if life.region is region and life.first_use >= 0:
            events.append((life.first_use, life.partition_bytes, life))
            events.append((life.last_use + 1, -life.partition_bytes, life))
    live = peak = 0
    at: Lifetime | None = None
    for _, change, life in sorted(events, key=lambda event: (event[0], event[1])):
        live += change
        if live > peak:
            peak, at = live, life
    capacity = limits.SBUF_USABLE_BYTES
    if region is MemoryRegion.psum:
        capacity = limits.PSUM_PARTITION_BYTES
    if peak > capacity and at is not None:
        raise NkiValidationError(
            "nl.ndarray",
            f"live tiles in {region}",
            f"{peak} bytes a partition with this allocation of {at.partition_bytes}",
            f"{region} has {capacity} bytes a partition",
            "use smaller tiles, or finish with a tile before the next is written",
            at.site,
        )
    return peak


def _trace(launch: Launch) -> tuple[dict[str, Any], ...]:
    rows: list[dict[str, Any]] = []
    for program in launch.programs:
        for number, plan in enumerate(program.trace or ()):
            rows.append(
                {
                    "program": program.index,
                    "number": number,
                    "instruction": plan.instruction,
                    "engine": plan.engine,
                    "partitions": plan.partitions,
                    "free_size": plan.free_size,
                    "dtype": plan.dtype,
                    "read_bytes": plan.read_bytes,
                    "write_bytes": plan.write_bytes,
                }
            )
    return tuple(rows)
