"""The command line as tests call it."""

from __future__ import annotations

import pytest

from harness.cli.main import main

__all__ = ["run"]


def run(*arguments: object) -> int:
    """Run `neuron-harness ...` in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)
