"""The online side of `neuron-harness sweep`: servers of our own, or one that already runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from harness.cli.served import attached, client_of, started
from harness.cli.sweep import plan_points, record_points
from harness.core.errors import ExitCode
from harness.core.sweep_spec import SweepSpec

if TYPE_CHECKING:
    from harness.run.store import RunStore

__all__ = ["measure_attached", "measure_served"]

# Ids below it are known to every model a server may have.
_SMALL_VOCABULARY = 256


def measure_served(store: RunStore, screen: Console, spec: SweepSpec, checkpoint: Path) -> ExitCode:
    """One `serve` process a setting."""
    from engine.config.parse import load_model_config
    from harness.run.online import online_point, run_online_sweep

    planned = [online_point(point) for point in plan_points(spec, checkpoint)]
    vocab_size = load_model_config(str(checkpoint)).vocab_size
    return record_points(
        store,
        screen,
        planned,
        lambda finished, tell: run_online_sweep(
            spec, planned, started, vocab_size=vocab_size, finished=finished, progress=tell
        ),
    )


def measure_attached(
    store: RunStore, screen: Console, spec: SweepSpec, url: str, model: str
) -> ExitCode:
    """Any OpenAI-compatible server; its settings are not ours, so they are no axes here."""
    from harness.run.online import attached_points, run_online_sweep, served_vocab_size

    client = client_of(url, model)
    facts = asyncio.run(client.facts())
    vocab_size = served_vocab_size(client, _SMALL_VOCABULARY)
    limit = facts.get("max_model_len")
    planned = attached_points(spec, url, client.model, limit if isinstance(limit, int) else 0)
    screen.print(f"  {client.model} at {url}, prompt ids below {vocab_size}", markup=False)
    return record_points(
        store,
        screen,
        planned,
        lambda finished, tell: run_online_sweep(
            spec,
            planned,
            attached(url, client.model),
            vocab_size=vocab_size,
            finished=finished,
            progress=tell,
        ),
    )
