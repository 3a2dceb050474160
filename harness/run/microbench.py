"""The constants of a host: what a launch, a copy and a collective cost, measured.

Raw times in, fitted constants out: time = floor + bytes * slope, through the medians of each size.
A calibration says what it was measured on, so that a figure of a CPU never stands for a device's.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, UsageError
from harness.core.record import strict_json, to_plain

__all__ = [
    "UNCALIBRATED",
    "Calibration",
    "Line",
    "Series",
    "fit",
    "measure",
    "read_calibration",
    "write_calibration",
]

UNCALIBRATED = "uncalibrated"
SCHEMA = 1
# What kernels are designed to (nki.md §1.2).
_DESIGN_ROW_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one thing at one size.

    Attributes:
        kind: "launch", "host_to_device", "device_to_host", "all_reduce", "all_gather",
            "dma_rows".
        num_bytes: moved by one call, a rank's part for collectives.
        ranks: taking part.
        samples_ns: one per repeat, after warm-up.
        detail: what else distinguishes it, e.g. {"row_bytes": 2048}.
    """

    kind: str
    num_bytes: int
    ranks: int
    samples_ns: tuple[int, ...]
    detail: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.samples_ns or min(self.samples_ns) < 0:
            raise ValueError(f"{self.kind}: a series has samples, none of them negative")

    @property
    def median_ns(self) -> float:
        """Of the samples."""
        return float(statistics.median(self.samples_ns))


@dataclass(frozen=True, slots=True)
class Line:
    """time_ns = floor_ns + bytes * ns_per_byte, of one kind, rank count and detail.

    Attributes:
        worst_relative_error: largest |model - median| / median over the sizes measured.
    """

    kind: str
    ranks: int
    detail: Mapping[str, int]
    floor_ns: float
    ns_per_byte: float
    num_sizes: int
    worst_relative_error: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `write_calibration` keeps.

    Attributes:
        origin: of `harness.run.environment.ResultOrigin`: whose constants these are.
        environment: fingerprint of the host.
    """

    origin: str
    lines: tuple[Line, ...]
    series: tuple[Series, ...]
    environment: Mapping[str, Any]

    @property
    def is_device(self) -> bool:
        """Whether it says anything about hardware."""
        return self.origin == "device"

    def estimate_ns(self, kind: str, num_bytes: int, ranks: int = 1) -> float | None:
        """Predicted time; None where nothing of the kind was measured at that many ranks."""
        for line in self.lines:
            if line.kind == kind and line.ranks == ranks and not line.detail:
                return line.floor_ns + num_bytes * line.ns_per_byte
        return None

    def launch_estimate_ns(self, engine_ns: float, dma_bytes: int) -> float | None:
        """Floor plus the longer of engine time and DMA time, at rows of 2 KiB where measured.

        Args:
            engine_ns: the busiest engine's, by documented rates.

        Returns:
            None without a measured launch floor.
        """
        floor = self.estimate_ns("launch", 0)
        if floor is None:
            return None
        rates = [
            line.ns_per_byte
            for line in self.lines
            if line.kind == "dma_rows" and line.detail.get("row") == _DESIGN_ROW_BYTES
        ]
        return floor + max(engine_ns, dma_bytes * rates[0] if rates else 0.0)

    def label(self) -> str:
        """How an estimate that uses it is to be called."""
        if not self.is_device:
            return f"{UNCALIBRATED} (constants of {self.origin})"
        return "calibrated on this device"


def measure(
    call: Callable[[], object],
    wait: Callable[[], None],
    clock_ns: Callable[[], int],
    *,
    repeats: int,
    warmups: int = 2,
) -> tuple[int, ...]:
    """Times of single calls, each waited for; the first `warmups` (compiles) are not kept.

    Raises:
        UsageError: fewer than 3 repeats, of which a median says nothing.
    """
    if repeats < 3:
        raise UsageError(f"--repeats {repeats}: at least 3, a median of fewer says nothing")
    samples = []
    for number in range(warmups + repeats):
        wait()
        start = clock_ns()
        call()
        wait()
        if number >= warmups:
            samples.append(clock_ns() - start)
    return tuple(samples)


def fit(series: Sequence[Series]) -> tuple[Line, ...]:
    """One line for each kind, rank count and detail.

    The slope is the median of the slopes between all pairs of sizes (Theil-Sen), never below 0;
    the floor the median of what is left: one disturbed size moves neither.
    """
    groups: dict[tuple[str, int, tuple[tuple[str, int], ...]], list[Series]] = {}
    for one in series:
        groups.setdefault((one.kind, one.ranks, tuple(sorted(one.detail.items()))), []).append(one)
    return tuple(
        _line(kind, ranks, dict(detail), members)
        for (kind, ranks, detail), members in groups.items()
    )


def _line(kind: str, ranks: int, detail: Mapping[str, int], members: Sequence[Series]) -> Line:
    points = sorted((one.num_bytes, one.median_ns) for one in members)
    slopes = [
        (y2 - y1) / (x2 - x1)
        for place, (x1, y1) in enumerate(points)
        for x2, y2 in points[place + 1 :]
        if x2 > x1
    ]
    slope = max(0.0, statistics.median(slopes)) if slopes else 0.0
    floor = max(0.0, statistics.median(y - slope * x for x, y in points))
    worst = max(abs(floor + slope * x - y) / y if y else 0.0 for x, y in points)
    return Line(kind, ranks, detail, floor, slope, len(points), worst)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write it whole or not at all.

    Raises:
        UsageError: the place cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(strict_json({"schema": SCHEMA, **to_plain(calibration)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)


def read_calibration(path: Path) -> Calibration:
    """What `write_calibration` wrote.

    Raises:
        InputError: absent, broken, or of another schema.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(path, "file", error.strerror, "run `neuron-harness microbench`") from error
    except ValueError as error:
        raise InputError(path, "content", str(error), "run `neuron-harness microbench`") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema") if isinstance(body, dict) else type(body).__name__
        raise InputError(path, "schema", found, f"{SCHEMA} is read; measure again")
    try:
        return Calibration(
            origin=str(body["origin"]),
            lines=tuple(Line(**line) for line in body["lines"]),
            series=tuple(
                Series(**{**one, "samples_ns": tuple(one["samples_ns"])}) for one in body["series"]
            ),
            environment=body["environment"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(path, "content", repr(error), "measure again") from error
