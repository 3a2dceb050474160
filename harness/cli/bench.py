"""`neuron-harness bench`: speed as ratios within one run; a report, never a verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from harness.core.errors import UsageError
from harness.core.suggest import near_names

if TYPE_CHECKING:
    from harness.cli.benchmarks.measurement import Figure

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    only: Annotated[list[str] | None, typer.Option(help="Subjects to measure.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure demo and parity time, the engine's speed and what the interpreter costs."""
    from harness.core.record import strict_json

    subjects = _subjects()
    for name in only or ():
        if name not in subjects:
            raise UsageError(f"bench subject {name!r} is not known{near_names(name, subjects)}")
    screen = Console()
    figures: list[Figure] = []
    for name in only or subjects:
        screen.print(f"measuring {name} …")
        figures.extend(subjects[name]())
    screen.print(_table(figures))
    if out is not None:
        out.write_text(strict_json(figures) + "\n", encoding="utf-8")


def _subjects() -> dict[str, Callable[[], list[Figure]]]:
    from harness.cli.benchmarks.client import client_figures
    from harness.cli.benchmarks.collectives import collective_figures
    from harness.cli.benchmarks.cp_scaling import cp_scaling_figures
    from harness.cli.benchmarks.decode import decode_figures
    from harness.cli.benchmarks.demo import demo_figures
    from harness.cli.benchmarks.engine_speed import (
        context_figures,
        oracle_figures,
        region_figures,
    )
    from harness.cli.benchmarks.host_time import host_time_figures
    from harness.cli.benchmarks.interpreter import gemm_figures, overhead_figures
    from harness.cli.benchmarks.parity import parity_figures
    from harness.cli.checkpoint_place import checkpoint_directory

    return {
        "interpreter": overhead_figures,
        "gemm": gemm_figures,
        "decode": lambda: decode_figures(checkpoint_directory("tiny-A", None)),
        "oracle": lambda: oracle_figures(checkpoint_directory("tiny-B", None)),
        "regions": lambda: region_figures(checkpoint_directory("tiny-B", None)),
        "context": lambda: context_figures(checkpoint_directory("tiny-A", None)),
        "host_time": lambda: host_time_figures(checkpoint_directory("tiny-D", None)),
        "collectives": collective_figures,
        "cp_scaling": lambda: cp_scaling_figures(checkpoint_directory("tiny-C", None)),
        "client": client_figures,
        "parity": parity_figures,
        "demo": demo_figures,
    }


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "value", "unit", "goal", "met", "against")
    marks = {None: "", True: "yes", False: "no"}
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:.2f}",
            figure.unit,
            figure.goal,
            marks[figure.met],
            figure.baseline,
        )
    return table
