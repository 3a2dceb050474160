"""`neuron-harness doctor`: what this machine offers and what stands in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.session import console
from harness.core.errors import ExitCode
from harness.core.record import strict_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    checkpoint: Annotated[
        Path | None, typer.Option(help="Whose Engram tables shared memory must hold.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for scripts.")] = False,
) -> None:
    """Look at Python, packages, SDK, cores, shared memory and caches; say what to do."""
    from harness.run.doctor import Level, examine

    findings = examine(checkpoint)
    healthy = all(finding.level is not Level.PROBLEM for finding in findings)
    if as_json:
        print(strict_json({"healthy": healthy, "findings": findings}))
    else:
        screen = console()
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            screen.print(
                f"{finding.level.value:<7}  {finding.name:<{width}}  {finding.value}", markup=False
            )
            if finding.remedy:
                screen.print(f"{'':<7}  {'':<{width}}  -> {finding.remedy}", markup=False)
        screen.print("nothing stands in the way" if healthy else "there are problems to solve")
    raise typer.Exit(ExitCode.PASS if healthy else ExitCode.CANNOT_JUDGE)
