"""`neuron-harness support-bundle`: what to send when something fails; no weights, no prompts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.session import DEFAULT_OUT

__all__ = ["register"]

_NEWEST = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("support-bundle")(support_bundle)


def support_bundle(
    run: Annotated[
        list[Path] | None, typer.Option(help="A run's directory; default: the newest three.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Its configuration is taken, nothing else.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
    out: Annotated[Path | None, typer.Option(help="The archive.")] = None,
) -> None:
    """Pack versions, doctor's findings, configurations, records and logs into one archive."""
    from harness.run.compile_cache import compile_caches
    from harness.run.doctor import examine
    from harness.run.environment import fingerprint
    from harness.run.support_bundle import collect, write_archive

    chosen = run or _newest(runs)
    facts = {
        "environment": fingerprint(),
        "findings": examine(checkpoint),
        "compile_caches": [
            {"place": cache.place, "entries": cache.num_entries, "stamp": cache.stamped()}
            for cache in compile_caches()
        ],
    }
    target = out or Path(f"neuron-harness-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    count = write_archive(target, collect(chosen, checkpoint, facts, os.environ))
    typer.echo(f"{target}: {count} files of {len(chosen)} runs; no weights, no prompts")


def _newest(runs: Path) -> list[Path]:
    found = [path.parent for path in runs.glob("*/run.json")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:_NEWEST]
