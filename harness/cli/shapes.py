"""`neuron-harness shapes`: how a configuration lies on its ranks, without its weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli.engine_options import Cp, Ep
from harness.core.engine_face import EngineSettings
from harness.core.numerics import numerics_named

if TYPE_CHECKING:
    from engine.shapes.plan import LayoutReport

__all__ = ["register"]

_GIB = 2**30


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shapes")(shapes)


def shapes(
    config: Annotated[Path, typer.Option(help="config.json, nested or flat.")],
    cp: Cp = 1,
    ep: Ep = 0,
    numerics: Annotated[str, typer.Option(help="Decides where sums are exchanged.")] = "trn2",
    max_model_len: Annotated[int, typer.Option(help="Context to lay out; 0: default.")] = 0,
    prompt_len: Annotated[
        int, typer.Option(help="Count what such a prompt launches on both prefill paths; 0: none.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Every tensor, as JSON.")] = False,
) -> None:
    """Print tensors per rank, collectives, weight bytes and kernel launches of a step."""
    from engine.config.limits import resolve_limits
    from engine.config.parse import parse_model_config
    from engine.shapes.plan import lay_out
    from engine.shapes.prompt import prompt_costs

    model = parse_model_config(config)
    settings = EngineSettings(str(config.parent), cp=cp, ep=ep, max_model_len=max_model_len)
    limits = resolve_limits(settings, model)
    mode = numerics_named(numerics)
    report = lay_out(model, limits, mode, cp, ep)
    costs = prompt_costs(model, settings, mode, prompt_len) if prompt_len else ()
    if as_json:
        plain = _plain(report) | {"prompts": [asdict(cost) for cost in costs]}
        typer.echo(json.dumps(plain, indent=1))
        return
    screen = Console(highlight=False, soft_wrap=True)
    _print_tensors(screen, report)
    _print_summary(screen, report)
    for cost in costs:
        screen.print(
            f"{f'prompt of {cost.prompt_len}, {cost.prefill}':<29}"
            f"{cost.launches} kernel launches, {cost.collectives} collectives in "
            f"{cost.num_steps} steps, {cost.num_padding} rows of padding"
        )


def _print_tensors(screen: Console, report: LayoutReport) -> None:
    from engine.shapes.inventory import condensed

    rows = [("tensor of rank 0", "layers", "shape", "dtype", "bytes each")]
    for name, layers, tensor in condensed(report.tensors):
        shape = "×".join(map(str, tensor.shape))
        rows.append((name, layers, shape, tensor.dtype, f"{tensor.num_bytes:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        *texts, size = row
        cells = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
        screen.print("  ".join([*cells, size.rjust(widths[-1])]), markup=False)
    screen.print()


def _print_summary(screen: Console, report: LayoutReport) -> None:
    largest, smallest = max(report.resident_bytes), min(report.resident_bytes)
    table_bytes = report.engram_table_bytes
    ratio = report.step_bytes / report.least_step_bytes
    lines = [
        f"ranks                        {report.num_ranks} ({report.numerics})",
        f"collectives per layer        {report.collectives_per_layer}",
        *(
            f"{step.name + f' step, {step.num_rows} rows':<29}"
            f"{step.launches} kernel launches, {step.collectives} collectives, "
            f"context bucket {step.context}"
            for step in report.steps
        ),
        f"weights per rank             {(largest - table_bytes) / _GIB:.3f} GiB "
        f"(smallest rank {(smallest - table_bytes) / _GIB:.3f})",
        f"engram tables per host       {table_bytes / _GIB:.3f} GiB, one copy for all ranks",
        f"caches per rank              {report.cache_bytes / _GIB:.3f} GiB",
        f"weight bytes per decode step {report.step_bytes / _GIB:.3f} GiB on the busiest rank, "
        f"{report.least_step_bytes / _GIB:.3f} GiB the least possible ({ratio:.3f}×)",
        f"  read alike by all ranks    {report.replicated_step_bytes / _GIB:.3f} GiB of both",
    ]
    screen.print("\n".join(lines))


def _plain(report: LayoutReport) -> dict[str, object]:
    return {
        "num_ranks": report.num_ranks,
        "numerics": report.numerics,
        "collectives_per_layer": report.collectives_per_layer,
        "resident_bytes": report.resident_bytes,
        "engram_table_bytes": report.engram_table_bytes,
        "cache_bytes": report.cache_bytes,
        "step_bytes": report.step_bytes,
        "least_step_bytes": report.least_step_bytes,
        "replicated_step_bytes": report.replicated_step_bytes,
        "steps": [
            {
                "name": step.name,
                "num_rows": step.num_rows,
                "context": step.context,
                "launches": step.launches,
                "collectives": step.collectives,
            }
            for step in report.steps
        ],
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "bytes": tensor.num_bytes,
            }
            for tensor in report.tensors
        ],
    }
