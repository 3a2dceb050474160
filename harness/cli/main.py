"""`neuron-harness`: registers the commands and turns every ending into an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import typer

from harness.core.child_processes import end_fork_server_at_exit
from harness.core.errors import ExitCode, HarnessError

__all__ = ["COMMANDS", "build_app", "main"]

# One module of harness.cli a command; each offers `register(app)`.
COMMANDS: tuple[str, ...] = (
    "ab",
    "bench",
    "bench_neuron",
    "bisect",
    "bringup",
    "capture",
    "checkpoint",
    "compile",
    "doctor",
    "evaluate",
    "gate",
    "interchange",
    "interpret",
    "ledger",
    "lint",
    "generate",
    "logits",
    "microbench",
    "ops",
    "parity",
    "plan",
    "records",
    "report",
    "rescale_loss",
    "run",
    "serve",
    "shapes",
    "support_bundle",
    "sweep",
    "tokens",
)


def build_app() -> typer.Typer:
    """The command line with every command registered."""
    app = typer.Typer(
        name="neuron-harness",
        help="Correctness and benchmarking harness for DeepSeek-V4.1-Flash on Trainium2.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for command in COMMANDS:
        importlib.import_module(f"harness.cli.{command}").register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exits with a code of measurement.md §6; a user's mistake has no traceback."""
    end_fork_server_at_exit()
    try:
        with _terminated_like_interrupted():
            build_app()(args=list(arguments) if arguments is not None else None, prog_name=None)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; finished work is kept", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        print(f"internal error: {error!r}; traceback in {_save_traceback()}", file=sys.stderr)
        sys.exit(ExitCode.INTERNAL)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM takes the way of Ctrl-C: ranks and workers end, temporary files go."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would cut the cleaning short
        raise KeyboardInterrupt("SIGTERM")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _save_traceback() -> str:
    handle, path = tempfile.mkstemp(prefix="neuron-harness-", suffix=".traceback.txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exc(file=file)
    return path


if __name__ == "__main__":
    main()
