"""`neuron-harness rescale-loss`: what the 240 grid costs each fp8 weight of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rescale-loss")(rescale_loss)


def rescale_loss(
    checkpoint: Annotated[Path, typer.Argument(help="directory with safetensors files")],
    show_all: Annotated[
        bool, typer.Option("--all", help="list tensors that lose nothing, too")
    ] = False,
) -> None:
    """Measure the rescaling of fp8 weights from 448 to Trainium's 240, tensor by tensor."""
    from engine.weights.checkpoint import Checkpoint
    from engine.weights.rescale_loss import rescale_losses

    typer.echo(f"{'tiles rescaled':>20} {'inexact values':>20} {'largest':>9} {'rms':>9}  tensor")
    num_tensors = num_exact = 0
    for loss in rescale_losses(Checkpoint(checkpoint)):
        num_tensors += 1
        num_exact += not loss.num_inexact
        if loss.num_inexact or show_all:
            tiles = f"{loss.num_rescaled_tiles}/{loss.num_tiles}"
            values = f"{loss.num_inexact}/{loss.num_values}"
            errors = f"{loss.largest_error:9.2g} {loss.rms_error:9.2g}"
            typer.echo(f"{tiles:>20} {values:>20} {errors}  {loss.name}")
    typer.echo(f"{num_tensors} fp8 tensors, {num_exact} of them carried over without loss")
