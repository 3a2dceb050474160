"""Finds suites by name or path and loads them: the one module others import."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.core.errors import UsageError
from harness.core.evaluation import EvaluationTask
from harness.core.gate_spec import GateSpec
from harness.core.ops import OP_SHEET
from harness.core.suggest import near_names
from harness.core.sweep_spec import SweepSpec
from harness.core.token_suite import TokenSuite
from suites.evaluation_reader import read_evaluation
from suites.gate_reader import read_gate_suite
from suites.op_reader import read_op_suite
from suites.op_suite import OpSuite
from suites.sweep_reader import read_sweep_suite
from suites.token_reader import read_token_suite

__all__ = [
    "KINDS",
    "list_suites",
    "load_evaluation",
    "load_gate_suite",
    "load_op_suite",
    "load_sweep_suite",
    "load_token_suite",
]

KINDS = ("ops", "tokens", "sweeps", "gates", "evaluations")
_HERE = Path(__file__).parent

T = TypeVar("T")


def list_suites(kind: str) -> tuple[str, ...]:
    """Names of the suites that ship with the package, sorted.

    Raises:
        UsageError: unknown kind.
    """
    if kind not in KINDS:
        raise UsageError(f"suite kind {kind!r} is not known{near_names(kind, KINDS)}")
    return tuple(sorted(path.stem for path in (_HERE / kind).glob("*.toml")))


def load_op_suite(name: str | os.PathLike[str]) -> OpSuite:
    """The suite of an op (by op or stem) or of a file.

    Raises:
        UsageError: unknown name; the message lists near names.
        InputError: the file is wrong.
        VacuousError: the file holds no case.
    """
    text = os.fspath(name)
    stem = OP_SHEET[text].stem if text in OP_SHEET else text
    return _load("ops", stem, read_op_suite, known=sorted({*list_suites("ops"), *OP_SHEET}))


def load_token_suite(name: str | os.PathLike[str]) -> TokenSuite:
    """A token suite by name or path; raises as `load_op_suite`."""
    return _load("tokens", name, read_token_suite)


def load_sweep_suite(name: str | os.PathLike[str]) -> SweepSpec:
    """A sweep by name or path; raises as `load_op_suite`."""
    return _load("sweeps", name, read_sweep_suite)


def load_gate_suite(name: str | os.PathLike[str]) -> GateSpec:
    """A gate by name or path; raises as `load_op_suite`."""
    return _load("gates", name, read_gate_suite)


def load_evaluation(name: str | os.PathLike[str]) -> EvaluationTask:
    """An evaluation by name or path; raises as `load_op_suite`."""
    return _load("evaluations", name, read_evaluation)


def _load(
    kind: str,
    name: str | os.PathLike[str],
    read: Callable[[Path], T],
    known: list[str] | None = None,
) -> T:
    """A path ends in .toml or has a directory; everything else is a name."""
    text = os.fspath(name)
    if text.endswith(".toml") or os.sep in text:
        return read(Path(text))
    names = list_suites(kind)
    if text not in names:
        singular = kind.removesuffix("s")
        raise UsageError(
            f"{singular} suite {text!r} is not known{near_names(text, known or names)}"
        )
    return read(_HERE / kind / f"{text}.toml")
