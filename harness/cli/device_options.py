"""Options of commands that may run on a device, beside those of `engine_options`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AllowFallback", "OpsWord"]

OpsWord = Annotated[str, typer.Option(help="references or kernels; empty: kernels on a device.")]
AllowFallback = Annotated[
    list[str] | None,
    typer.Option("--allow-fallback", help="Op that may run on the CPU beside the device."),
]
