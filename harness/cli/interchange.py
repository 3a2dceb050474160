"""`neuron-harness interchange`: result files of `vllm bench serve`, out and in."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.session import DEFAULT_OUT, recording
from harness.core.errors import UsageError

__all__ = ["register"]

_interchange = typer.Typer(no_args_is_help=True, help="Exchange sweeps with vllm bench serve.")


def register(app: typer.Typer) -> None:
    """Add the command group."""
    app.add_typer(_interchange, name="interchange")


@_interchange.command("export")
def export(
    run: Annotated[Path, typer.Argument(help="A run with measured points.")],
    out: Annotated[Path, typer.Argument(help="Directory of the sweep to write.")],
) -> None:
    """Write <point>/run=N.json, summary.json and summary.csv for every measured point."""
    from harness.run.interchange import export_sweep
    from harness.run.store import read_ledger, read_run

    read_run(run)  # refuses what is no run
    records = read_ledger(run / "sweep.jsonl").by_key().values()
    measured = [record for record in records if record.payload["requests"]]
    if not measured:
        raise UsageError(f"{run}: holds no measured point")
    num_files = 0
    for record in measured:
        created = datetime.fromisoformat(record.created)
        num_files += len(export_sweep([record.payload], out, created=created))
    typer.echo(f"{len(measured)} points in {num_files} files below {out}")


@_interchange.command("import")
def import_(
    sweep: Annotated[Path, typer.Argument(help="Directory with <point>/run=N.json.")],
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
) -> None:
    """Make a run of a sweep's result files; report, gate and compare then read it."""
    from harness.cli.record_metrics import record_metrics
    from harness.run.interchange import import_sweep

    payloads = import_sweep(sweep)
    with recording(out, None) as store:
        for payload in payloads:
            store.append("sweep", payload["key"], payload)
        record_metrics(store)
        typer.echo(f"{len(payloads)} points; records: {store.directory}")
