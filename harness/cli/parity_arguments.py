"""What `parity` refuses before anything is run or written."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

from harness.cli.parity_selection import ParityOptions
from harness.core.errors import UsageError

__all__ = ["require_executor", "require_parity_arguments", "require_writable_file"]


def require_executor(executor: str, *, judges_cases: bool) -> None:
    """Where cases are judged.

    Raises:
        UsageError: another word, or a cluster for what is not a list of cases.
    """
    if executor not in ("local", "ray") or (executor == "ray" and not judges_cases):
        raise UsageError(
            f"--executor {executor!r}: local, or ray to judge the cases of a suite or preset"
        )


def require_parity_arguments(
    options: ParityOptions, mutation: str, count: int, clean_runs: int, junit: Path | None
) -> None:
    """Check the words and numbers of a command line, its target and the file it shall write.

    Raises:
        UsageError: names the option, its value and what it may be.
    """
    if mutation not in ("", "auto"):
        raise UsageError(f"--mutation {mutation!r} is not known: choose auto")
    for option, what, limit in (
        ("--time-limit-s", "time", options.time_limit_s),
        ("--memory-limit-gib", "memory", options.memory_limit_gib),
    ):
        if not 0 < limit < math.inf:
            raise UsageError(f"{option} {limit}: a {what} limit is positive and finite")
    for option, value, least in (
        ("--repeat", options.repeat, 1),
        ("--count", count, 1),
        ("--jobs", options.jobs, 0),
        ("--clean-runs", clean_runs, 0),
    ):
        if value < least:
            raise UsageError(f"{option} {value}: it is at least {least}")
    _require_target(options.kernels)
    if junit is not None:
        require_writable_file(junit, "--junit")


def _require_target(kernels: str) -> None:
    """The module is found, not imported: which backend it serves is the workers' to settle."""
    module, colon, name = kernels.partition(":")
    remedy = "it must read 'package.module:object'"
    if not (module and colon and name):
        raise UsageError(f"--kernels {kernels!r}: {remedy}")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise UsageError(f"--kernels {kernels!r}: {error}; {remedy}") from error
    if found is None:
        raise UsageError(f"--kernels {kernels!r}: there is no module {module}; {remedy}")


def require_writable_file(path: Path, option: str) -> None:
    """Before a long run, not after it; a file that is there keeps its content.

    Raises:
        UsageError: names the option and the reason.
    """
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from error
    if is_new:
        path.unlink()
