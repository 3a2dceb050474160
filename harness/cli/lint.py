"""`neuron-harness lint PATH`: portability findings of kernel sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.core.errors import ExitCode, InputError, VacuousError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lint")(lint)


def lint(
    paths: Annotated[list[Path], typer.Argument(help="Kernel files, or folders of them.")],
) -> None:
    """Report constructs that the NKI compiler, trn2 or a later NKI refuses; exit 1 on findings."""
    from kernels.interpreter.lint import lint_path, python_files

    num_findings = 0
    for path in paths:
        if not path.exists():
            raise InputError(path, "path", str(path), "give a Python file or a folder")
        if not any(True for _ in python_files(path)):
            raise VacuousError(f"{path}: no .py file below it, so nothing was looked at")
        try:
            findings = lint_path(path)
        except SyntaxError as error:
            where = f"line {error.lineno or 1}"
            file = error.filename or path
            raise InputError(file, where, error.msg, "make it valid Python") from error
        except OSError as error:
            raise InputError(path, "file", error.strerror, "make it readable") from error
        for finding in findings:
            typer.echo(str(finding))
        num_findings += len(findings)
    if num_findings:
        typer.echo(f"{num_findings} findings")
        raise typer.Exit(ExitCode.MISMATCH)
    typer.echo("no findings")
