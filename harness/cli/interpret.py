"""`neuron-harness interpret -- script.py args…`: a script's NKI kernels on this CPU."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from harness.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from harness.run.microbench import Calibration
    from kernels.interpreter.summary import LaunchSummary

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("interpret")(interpret)


def interpret(
    script: Annotated[Path, typer.Argument(help="The Python script, after `--`.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    replace_sdk: Annotated[
        bool, typer.Option("--replace-sdk", help="Also where AWS's nki is installed.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print what each launch did to stderr.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="Constants of a device, from `microbench`.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write every instruction as JSON lines.")
    ] = None,
) -> None:
    """Run a script in which the bundled interpreter answers as nki, nki.isa and nki.language."""
    from kernels.interpreter.aliases import RealNkiPresentError, install
    from kernels.interpreter.options import set_launch_defaults
    from kernels.interpreter.report import summary_text, trace_lines

    constants = _constants(calibration)

    if not script.is_file():
        raise InputError(script, "script", str(script), "give a Python file after `--`")
    try:
        install(replace_real=replace_sdk)
    except RealNkiPresentError as error:
        raise UsageError(f"{error}: --replace-sdk") from error
    with contextlib.ExitStack() as stack:
        sink = None
        if trace is not None:
            sink = stack.enter_context(_opened_trace(trace))

        def on_launch(launch: LaunchSummary) -> None:
            if summary:
                print(summary_text(launch), file=sys.stderr)
                print(f"  {_launch_estimate(launch, constants)}", file=sys.stderr)
            if sink is not None:
                sink.writelines(f"{line}\n" for line in trace_lines(launch))

        set_launch_defaults(trace=sink is not None, on_launch=on_launch)
        sys.argv = [str(script), *(arguments or [])]
        sys.path.insert(0, str(script.resolve().parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Exception as error:
            # As Python itself ends a script: its traceback, without the frames of this command.
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
                frames = frames.tb_next
            traceback.print_exception(type(error), error, frames or error.__traceback__)
            raise typer.Exit(1) from error


def _opened_trace(file: Path) -> TextIO:
    try:
        return file.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--trace {file}: cannot be written ({error.strerror})") from error


def _constants(file: Path | None) -> Calibration | None:
    from harness.run.microbench import read_calibration

    return None if file is None else read_calibration(file)


def _launch_estimate(launch: LaunchSummary, constants: Calibration | None) -> str:
    """One line: what a launch would take, and what that rests on."""
    if constants is None:
        return "launch estimate: uncalibrated (give --calibration FILE of `microbench`)"
    found = constants.launch_estimate_ns(launch.estimated_ns, launch.total_bytes)
    time = "no launch floor was measured" if found is None else f"{found / 1e3:.1f} us"
    return f"launch estimate: {time}, {constants.label()}"
