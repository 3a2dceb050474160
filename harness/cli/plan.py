"""`neuron-harness plan`: cells of a matrix before it runs, what is pruned, how long it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from harness.cli.session import DEFAULT_OUT, console
from harness.core.sweep_spec import PlannedPoint, SweepSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    spec: Annotated[str, typer.Option(help="Name or file of a sweep.")] = "tiny",
    checkpoint: Annotated[Path | None, typer.Option(help="Default: tiny-A.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="Run to estimate from; default: the newest with a sweep.")
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Cells of sweep --online.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show every cell without running any."""
    from harness.cli.checkpoint_place import checkpoint_directory
    from harness.cli.sweep import plan_points
    from harness.run.estimate import estimate_s
    from harness.run.online import online_point
    from suites.loader import load_sweep_suite

    chosen = load_sweep_suite(spec)
    points = plan_points(chosen, checkpoint_directory("tiny-A", checkpoint))
    if online:
        points = tuple(online_point(point) for point in points)
    source = like or _newest_sweep(DEFAULT_OUT)
    measured = _payloads(source) if source else []
    rows = [
        _row(point, None if _reason(point, online) else estimate_s(chosen, point, measured), online)
        for point in points
    ]
    if as_json:
        typer.echo(json.dumps({"like": str(source or ""), "cells": rows}, allow_nan=False))
        return
    screen = console()
    screen.print(_table(rows))
    screen.print(_summary(chosen, points, rows, source), markup=False)


def _reason(point: PlannedPoint, online: bool) -> str:
    if not point.pruned and point.request_rate and not online:
        return f"request rate {point.request_rate:g} needs a server: sweep --online"
    return point.pruned


def _row(point: PlannedPoint, seconds: float | None, online: bool) -> dict[str, Any]:
    return {
        "key": point.key,
        "setting": point.settings.label,
        "context_buckets": list(point.settings.context_buckets),
        "input_len": point.input_len,
        "output_len": point.output_len,
        "concurrency": point.concurrency,
        "request_rate": point.request_rate or "closed",
        "pruned": _reason(point, online),
        "estimated_s": seconds,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    titles = ("setting", "in", "out", "in flight", "rate", "estimate", "pruned because")
    table = Table(*titles)
    for row in rows:
        seconds = row["estimated_s"]
        table.add_row(
            row["setting"] + (f" {row['context_buckets']}" if row["context_buckets"] else ""),
            str(row["input_len"]),
            str(row["output_len"]),
            str(row["concurrency"]),
            str(row["request_rate"]),
            "-" if seconds is None else f"{seconds:.1f} s",
            row["pruned"],
        )
    return table


def _summary(
    spec: SweepSpec,
    points: Sequence[PlannedPoint],
    rows: Sequence[dict[str, Any]],
    source: Path | None,
) -> str:
    num_pruned = sum(bool(row["pruned"]) for row in rows)
    running = [row for row in rows if not row["pruned"]]
    known = [row["estimated_s"] for row in running if row["estimated_s"] is not None]
    engines = len({point.settings for point in points if not point.pruned})
    text = f"{spec.name}: {len(rows)} cells, {num_pruned} pruned, {engines} engines to start; "
    if source is None or not known:
        return text + "time unknown: no earlier sweep to estimate from (--like RUN)"
    missing = len(running) - len(known)
    text += f"about {sum(known):.0f} s of measuring beside starting them, judged by {source}"
    return text + (f"; {missing} cells unknown" if missing else "")


def _newest_sweep(out: Path) -> Path | None:
    ledgers = sorted(out.glob("*/sweep.jsonl"), key=lambda file: file.stat().st_mtime)
    return ledgers[-1].parent if ledgers else None


def _payloads(run: Path) -> list[Any]:
    from harness.run.store import read_ledger, read_run

    read_run(run)  # refuses what is no run
    return [record.payload for record in read_ledger(run / "sweep.jsonl").records]
