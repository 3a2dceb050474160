"""`neuron-harness microbench`: what a launch, a copy, a DMA row and a collective cost here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.session import console, parse_ints
from harness.core.errors import ExitCode

if TYPE_CHECKING:
    import torch

    from harness.run.microbench import Series

__all__ = ["register"]

_DEFAULT_OUT = Path("runs/calibration.json")
_SIZES = "4096,65536,1048576"
_ROW_BYTES = (64, 512, 2048, 4096)
_DMA_BYTES = (262144, 524288)
_LAUNCH_BYTES = 512


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("microbench")(microbench)


def microbench(
    backend: Annotated[str, typer.Option(help="device, simulate or interpret.")] = "device",
    ranks: Annotated[str, typer.Option(help="Of collectives, e.g. 2,4,64.")] = "2",
    sizes: Annotated[str, typer.Option(help="Bytes of copies and collectives.")] = _SIZES,
    repeats: Annotated[int, typer.Option(help="Measured calls of each.")] = 20,
    out: Annotated[Path, typer.Option(help="The calibration file.")] = _DEFAULT_OUT,
) -> None:
    """Measure the constants that estimates are made of; without them these say uncalibrated."""
    from harness.cli.kernel_backend import select_backend
    from harness.run.collective_probe import ProbeSpec, probe_collectives
    from harness.run.environment import fingerprint, origin_of
    from harness.run.microbench import Calibration, fit, write_calibration

    bytes_of = parse_ints(sizes, "--sizes")
    rank_counts = parse_ints(ranks, "--ranks")
    select_backend(backend)
    device = "neuron" if backend == "device" else "cpu"
    series = [*_kernels(device, repeats), *_copies(device, bytes_of, repeats)]
    for count in rank_counts:
        series += probe_collectives(ProbeSpec(device, count, bytes_of, repeats))
    found = Calibration(
        origin_of(backend).value, fit(series), tuple(series), fingerprint(backend=backend)
    )
    write_calibration(out, found)
    _print(found)
    console().print(f"{out}: {found.label()}", markup=False)
    raise typer.Exit(ExitCode.PASS)


def _waiter(device: str) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    import torch

    synchronise: Callable[[], None] = torch.get_device_module(device).synchronize
    return synchronise


def _kernels(device: str, repeats: int) -> Iterator[Series]:
    """The launch floor, and copies through SBUF by descriptor row."""
    from harness.run.microbench import Series, measure
    from kernels.probes import row_copy, row_copy_input

    wait = _waiter(device)

    def timed(x: torch.Tensor, row: int) -> tuple[int, ...]:
        return measure(lambda: row_copy(x, row), wait, time.perf_counter_ns, repeats=repeats)

    least = row_copy_input(_LAUNCH_BYTES).to(device)
    yield Series("launch", 0, 1, timed(least, 4), {})
    for row in _ROW_BYTES:
        for size in _DMA_BYTES:
            x = row_copy_input(max(size, row * 128)).to(device)
            moved = 2 * x.numel() * x.element_size()
            yield Series("dma_rows", moved, 1, timed(x, min(row, 4 * x.shape[1])), {"row": row})


def _copies(device: str, sizes: tuple[int, ...], repeats: int) -> Iterator[Series]:
    """Host memory to the device and back; on a CPU plain copies, and called so by the origin."""
    import torch

    from harness.run.microbench import Series, measure

    wait = _waiter(device)
    for size in sizes:
        host = torch.ones(size // 4, dtype=torch.float32)
        there = host.to(device, copy=True)

        def to_device(host: torch.Tensor = host) -> object:
            return host.to(device, copy=True)

        def to_host(there: torch.Tensor = there) -> object:
            return there.to("cpu", copy=True)

        for kind, call in (("host_to_device", to_device), ("device_to_host", to_host)):
            samples = measure(call, wait, time.perf_counter_ns, repeats=repeats)
            yield Series(kind, size, 1, samples, {})


def _print(found: object) -> None:
    from rich.table import Table

    from harness.run.microbench import Calibration

    assert isinstance(found, Calibration)
    table = Table("what", "ranks", "floor µs", "GB/s", "worst error", title="Fitted constants")
    for line in found.lines:
        name = " ".join([line.kind, *(f"{key}={value}" for key, value in line.detail.items())])
        rate = f"{1 / line.ns_per_byte:.2f}" if line.ns_per_byte else "-"
        table.add_row(
            name,
            str(line.ranks),
            f"{line.floor_ns / 1e3:.1f}",
            rate,
            f"{line.worst_relative_error:.0%}",
        )
    console().print(table)
