"""`neuron-harness checkpoint`: make a tiny one, cut a slice of one, verify any."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.session import parse_ranges
from harness.core.errors import UsageError

__all__ = ["register"]

_checkpoint = typer.Typer(no_args_is_help=True, help="Make, cut or verify a checkpoint.")


def register(app: typer.Typer) -> None:
    """Add the command group."""
    app.add_typer(_checkpoint, name="checkpoint")


@_checkpoint.command("make")
def make(
    variant: Annotated[str, typer.Argument(help="tiny-A, tiny-B, tiny-D, tiny-T or steady")],
    directory: Annotated[Path, typer.Argument(help="where it shall stand")],
) -> None:
    """Generate a tiny checkpoint, the same bits on every machine; reuse one that is intact."""
    from tiny_checkpoints.generator import generate

    try:
        place = generate(variant, directory)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written: {error}") from error
    size_mib = sum(path.stat().st_size for path in place.iterdir()) / 2**20
    typer.echo(f"{variant} in {place}: {size_mib:.2f} MiB, equal to the manifest")


@_checkpoint.command("verify")
def verify_checkpoint(
    directory: Annotated[Path, typer.Argument(help="with config.json and safetensors")],
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="names, dtypes and shapes, but no values")
    ] = False,
) -> None:
    """Check names, dtypes, shapes and values; a tiny checkpoint also against its hashes.

    Where a SHA256SUMS stands beside the shards, they are compared with it too.
    """
    from harness.core.shard_sums import SUMS_FILE, has_sums, verify_sums
    from tiny_checkpoints.inspection import inspect_checkpoint
    from tiny_checkpoints.manifest import recognised_variant, verify

    found = inspect_checkpoint(directory, read_data=not headers_only)
    typer.echo(
        f"{directory}: {found.num_tensors} tensors, {found.num_parameters / 1e6:.2f} M parameters, "
        f"{found.num_bytes / 2**20:.2f} MiB, {found.num_ignored} vision tensors ignored"
    )
    variant = recognised_variant(directory)
    if headers_only:
        named = f"configuration of {variant}" if variant else "not one of the tiny checkpoints"
        typer.echo(f"{named}; hashes not compared (--headers-only)")
        return
    if variant is not None:
        verify(directory, variant)
        typer.echo(f"equal to the manifest of {variant}")
    elif has_sums(directory):
        verify_sums(directory, directory.glob("*.safetensors"))
    if has_sums(directory):
        typer.echo(f"equal to its {SUMS_FILE}, as every engine checks when it opens")
    elif variant is None:
        typer.echo(
            f"not one of the tiny checkpoints, without {SUMS_FILE}: no hashes to compare with"
        )
    else:
        typer.echo(f"without {SUMS_FILE}: engines open it unchecked; `checkpoint make` adds it")


@_checkpoint.command("slice")
def slice_command(
    source: Annotated[Path, typer.Argument(help="a checkpoint, whole or sharded")],
    destination: Annotated[Path, typer.Argument(help="does not exist yet")],
    layers: Annotated[str, typer.Option(help="ids to keep, e.g. 0-3,14,20")],
    experts: Annotated[str, typer.Option(help="ids to keep in every layer, e.g. 0-15")],
    engram_vocab_size: Annotated[
        int, typer.Option(help="cut Engram tables to this size; 0 keeps them whole")
    ] = 0,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="keep an existing slice of the same selection")
    ] = False,
) -> None:
    """Cut a small checkpoint of real weights out of a large one, for a CPU and a device."""
    from harness.cli.session import console, progress_bar
    from tiny_checkpoints.slicing import is_slice_of, slice_checkpoint

    kept = (parse_ranges(layers, "--layers"), parse_ranges(experts, "--experts"))
    if reuse and is_slice_of(destination, source, *kept, engram_vocab_size):
        typer.echo(f"{destination}: the same slice is there")
        return
    with progress_bar(console()) as tell:
        done = slice_checkpoint(
            source,
            destination,
            *kept,
            engram_vocab_size=engram_vocab_size,
            progress=lambda at, of: tell("copying MiB", at >> 20, of >> 20),
        )
    found = done.inspection
    for notice in done.notices:
        typer.echo(f"note: {notice}")
    typer.echo(
        f"{destination}: {found.num_tensors} tensors, {found.num_parameters / 1e6:.2f} M "
        f"parameters, {found.num_bytes / 2**20:.2f} MiB, verified"
    )
