"""`neuron-harness ledger`: where a decode step's time goes, beside what its ops should cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import engine_options as on
from harness.cli.device_options import AllowFallback, OpsWord
from harness.cli.session import DEFAULT_OUT, console, recording
from harness.core.errors import ExitCode

if TYPE_CHECKING:
    from harness.core.step_ledger import StepLedger

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ledger")(ledger)


def ledger(
    checkpoint: Annotated[Path | None, typer.Option(help="Default: tiny-A.")] = None,
    cp: on.Cp = 1,
    ep: on.Ep = 0,
    numerics: on.Numerics = "fast",
    input_len: Annotated[int, typer.Option(help="Prompt tokens before the measured steps.")] = 32,
    steps: Annotated[int, typer.Option(help="Decode steps to measure.")] = 32,
    enforce_eager: on.EnforceEager = True,
    compile_backend: on.CompileBackend = "",
    max_model_len: on.MaxModelLen = 0,
    num_kv_blocks: on.NumKvBlocks = 0,
    device: on.Device = "cpu",
    ops: OpsWord = "",
    allow_fallback: AllowFallback = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Of microbench; without it estimates are uncalibrated.")
    ] = None,
    time_limit_s: Annotated[float, typer.Option(help="For one answer of a rank.")] = 600.0,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
    run: Annotated[Path | None, typer.Option(help="Add to this run.")] = None,
) -> None:
    """Measure decode steps by region and collective, with an estimate beside every op."""
    options = {**locals(), "allowed_fallbacks": allow_fallback, "ops": None}
    from engine.environment import with_environment
    from harness.cli.checkpoint_place import checkpoint_directory
    from harness.cli.op_choice import with_ops
    from harness.cli.step_ledger import measure_ledger
    from harness.run.microbench import read_calibration

    constants = read_calibration(calibration) if calibration else None
    options["checkpoint"] = checkpoint_directory("tiny-A", checkpoint)
    settings = with_ops(with_environment(on.engine_settings(options)), ops)
    backend = "device" if device == "neuron" else "interpret"
    with recording(out, run, backend=backend) as store:
        found = measure_ledger(settings, input_len, steps, constants)
        key = f"{found.setting}/in={input_len}"
        store.append("step", key, found)
        _print(found)
        console().print(f"records: {store.directory}")
    raise typer.Exit(ExitCode.PASS)


def _print(found: StepLedger) -> None:
    from rich.console import Console
    from rich.table import Table

    from reports.step_times import account_of

    screen: Console = console()
    account = account_of(found)
    table = Table(title=f"A decode step of {found.setting}", title_justify="left")
    for number, heading in enumerate(("part", "calls", "ms", "share", "estimate ms")):
        table.add_column(heading, justify="right" if number else "left")
    for line in account.lines:
        estimate = "-" if line.estimate_ms is None else f"{line.estimate_ms:.3f}"
        calls = "" if line.calls is None else f"{line.calls:g}"
        table.add_row(line.name, calls, f"{line.ms:.3f}", f"{line.share:.1%}", estimate)
    screen.print(table)
    table = Table(title=f"Ops of a step; estimates: {found.calibration}", title_justify="left")
    for number, heading in enumerate(("op", "calls", "ms", "estimate ms", "KiB", "MFLOP")):
        table.add_column(heading, justify="right" if number else "left")
    for op in account.ops:
        measured = "-" if op.ms is None else f"{op.ms:.3f}"
        row = (f"{op.estimate_ms:.4f}", f"{op.num_bytes / 1024:.0f}", f"{op.flops / 1e6:.2f}")
        table.add_row(op.name, f"{op.calls}", measured, *row)
    screen.print(table)
    screen.print(account.sentence, markup=False)
    if found.config["compiled"]:
        screen.print("- : called within compiled regions too, where no op is timed by itself")
