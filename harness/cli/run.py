"""`neuron-harness run`: the main job, from checkpoint to verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli.checkpoint_place import checkpoint_directory
from harness.cli.gate import judge_run, shipped_baseline
from harness.cli.parity import check_parity
from harness.cli.record_metrics import record_metrics
from harness.cli.session import DEFAULT_OUT, console, recording
from harness.cli.stage import run_stage
from harness.cli.sweep import measure_sweep
from harness.cli.tokens import match_tokens
from harness.core.errors import ExitCode
from harness.core.status import worst_exit_code

if TYPE_CHECKING:
    from harness.run.store import RunStore

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    preset: Annotated[str, typer.Option(help="Name of the suites of every stage.")] = "tiny",
    checkpoint: Annotated[Path | None, typer.Option(help="Default: the preset's own.")] = None,
    backend: Annotated[str, typer.Option(help="interpret, simulate or device.")] = "interpret",
    baseline: Annotated[Path | None, typer.Option(help="Default: the shipped one.")] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
) -> None:
    """Checkpoint, parity, tokens, sweep, gate, report. Ends with the worst exit code."""
    screen = console()
    with recording(out, None, backend=backend) as store:
        code = _run_stages(store, screen, preset, checkpoint, backend, baseline)
        screen.print(f"run: {store.directory}")
    raise typer.Exit(code)


def _run_stages(
    store: RunStore,
    screen: Console,
    preset: str,
    checkpoint: Path | None,
    backend: str,
    baseline: Path | None,
) -> ExitCode:
    from suites.loader import load_gate_suite, load_sweep_suite, load_token_suite

    # Whatever is wrong with the request shows before anything is computed.
    tokens, sweep, gate = (
        load_token_suite(preset),
        load_sweep_suite(preset),
        load_gate_suite(preset),
    )
    base = baseline or shipped_baseline(preset)
    place: list[Path] = []

    def make_checkpoint() -> ExitCode:
        place.append(checkpoint_directory(tokens.checkpoint_variant, checkpoint))
        screen.print(f"  {place[0]}")
        return ExitCode.PASS

    def judge_gate() -> ExitCode:
        record_metrics(store)
        return judge_run(store, screen, gate, base)

    stages: tuple[tuple[str, Callable[[], ExitCode]], ...] = (
        ("checkpoint", make_checkpoint),
        ("parity", lambda: check_parity(store, screen, preset, backend)),
        ("tokens", lambda: match_tokens(store, screen, tokens, place[0], backend)),
        ("sweep", lambda: measure_sweep(store, screen, sweep, place[0])),
        ("gate", judge_gate),
        ("report", lambda: write_report(store, screen)),
    )
    return worst_exit_code([run_stage(store, screen, name, action) for name, action in stages])


def write_report(store: RunStore, screen: Console) -> ExitCode:
    """Render the run; the gate's verdicts are in it."""
    from reports.render import render

    for path in render(store.directory):
        screen.print(f"  {path}")
    return ExitCode.PASS
