"""pytest with kernels that import `nki`, on a machine without it.

pytest -p kernels.interpreter.pytest_plugin --nki-interpreter
"""

from __future__ import annotations

import pytest

from kernels.interpreter.aliases import RealNkiPresentError, install

__all__ = ["pytest_addoption", "pytest_configure", "pytest_report_header"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("nki interpreter")
    group.addoption(
        "--nki-interpreter",
        action="store_true",
        help="the bundled interpreter answers as nki, nki.isa and nki.language",
    )
    group.addoption(
        "--nki-interpreter-replaces-sdk",
        action="store_true",
        help="the same even where AWS's nki is installed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Install the aliases before any test module is imported."""
    replace = bool(config.getoption("--nki-interpreter-replaces-sdk"))
    if not (replace or config.getoption("--nki-interpreter")):
        return
    try:
        install(replace_real=replace)
    except RealNkiPresentError as error:
        raise pytest.UsageError(
            f"--nki-interpreter: {error} (--nki-interpreter-replaces-sdk)"
        ) from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say who answers as nki."""
    if config.getoption("--nki-interpreter") or config.getoption("--nki-interpreter-replaces-sdk"):
        return ["nki: bundled interpreter"]
    return []
