"""What `parity` refuses before anything is run or written."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

from harness.core.errors import UsageError

__all__ = ["require_parity_arguments", "require_writable_file"]


def require_parity_arguments(
    *,
    time_limit_s: float,
    memory_limit_gib: float,
    repeat: int,
    jobs: int,
    count: int,
    clean_runs: int,
    kernels: str,
    junit: Path | None,
) -> None:
    """Check the numbers of a command line, its target and the file it shall write.

    Raises:
        UsageError: names the option, its value and what it may be.
    """
    if not 0 < time_limit_s < math.inf:
        raise UsageError(f"--time-limit-s {time_limit_s}: a time limit is positive and finite")
    if not 0 < memory_limit_gib < math.inf:
        raise UsageError(
            f"--memory-limit-gib {memory_limit_gib}: a memory limit is positive and finite"
        )
    for option, value, least in (
        ("--repeat", repeat, 1),
        ("--count", count, 1),
        ("--jobs", jobs, 0),
        ("--clean-runs", clean_runs, 0),
    ):
        if value < least:
            raise UsageError(f"{option} {value}: it is at least {least}")
    _require_target(kernels)
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
