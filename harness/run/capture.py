"""Real inputs of ops: taken from an engine at work, stored as bundles that parity replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.core.case import Case
from harness.core.errors import VacuousError
from harness.core.op_table import OpTable
from harness.core.ops import op_named
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.core.weights import QuantisedWeight
from harness.run.bundle import bundle_directory, write_bundle
from harness.run.golden import MissingGolden, expected_of, kernel_numerics
from harness.run.inputs import Arguments
from harness.run.judge import ToleranceTable

__all__ = ["CAPTURED", "Capture", "captured_case", "described"]

CAPTURED = "captured"
Face = tuple[object, ...]


@dataclass(slots=True)
class Capture:
    """Keeps a copy of what chosen ops are called with, and passes every call on.

    Args:
        base: the table that does the work.
        ops: names of the ops to watch.
        calls_per_face: how many calls of one set of shapes, dtypes and scalars are kept.
    """

    base: OpTable
    ops: tuple[str, ...]
    calls_per_face: int = 1
    kept: list[Arguments] = field(default_factory=list)
    _num_kept: dict[Face, int] = field(default_factory=dict)

    def table(self) -> OpTable:
        """The base with watched ops in place of its own."""
        watched = {name: self._watched(name) for name in self.ops}
        return self.base.overlaid(OpTable(watched))

    def _watched(self, name: str) -> Callable[..., Any]:
        spec, op = op_named(name), self.base.ops[name]

        def call(*positional: Any, **options: Any) -> Any:
            arguments = Arguments(spec, dict(zip(spec.parameter_names, positional, strict=True)))
            self._keep(arguments)
            return op(*positional, **options)

        return call

    def _keep(self, arguments: Arguments) -> None:
        face = _face(arguments)
        number = self._num_kept.get(face, 0)
        if number < self.calls_per_face:
            self._num_kept[face] = number + 1
            # Contiguous: a slice of a cache would bring the whole cache along.
            self.kept.append(arguments.contiguous())

    def write(
        self, root: Path, reference: OpTable, tolerances: ToleranceTable, fp8_max: int
    ) -> list[Path]:
        """One bundle a kept call, below `root`, with golden, baseline and budgets.

        Raises:
            VacuousError: nothing was kept, or a golden cannot be computed.
            UsageError: `root` cannot be written.
        """
        if not self.kept:
            raise VacuousError(f"the engine called none of {', '.join(self.ops)}")
        return [
            _write(root, number, arguments, reference, tolerances, fp8_max)
            for number, arguments in enumerate(self.kept)
        ]


def captured_case(number: int, arguments: Arguments) -> Case:
    """A case that names the call: axes by the sheet's legend where a shape says them."""
    axes: dict[str, int] = {}
    for value in arguments.spec.inputs:
        held = arguments.values[value.name]
        letters = value.shape.split()
        if isinstance(held, torch.Tensor) and len(letters) == held.dim():
            axes |= {
                letter: length
                for letter, length in zip(letters, held.shape, strict=True)
                if letter.isalpha()
            }
    scalars = {
        value.name: arguments.values[value.name]
        for value in arguments.spec.inputs
        if value.kind == "scalar"
    }
    return Case(arguments.spec.name, axes, family=CAPTURED, seed=number, scalars=scalars)


def _write(
    root: Path,
    number: int,
    arguments: Arguments,
    reference: OpTable,
    tolerances: ToleranceTable,
    fp8_max: int,
) -> Path:
    case = captured_case(number, arguments)
    budgets = tolerances.get(case.op, {})
    expected = expected_of(case, arguments, reference, budgets, kernel_numerics(case, fp8_max))
    if isinstance(expected, MissingGolden):
        raise VacuousError(f"{case.case_id}: {expected.message}")
    result = ParityResult(case.case_id, case.op, "none", OpStatus.SKIPPED, "captured, not judged")
    directory = bundle_directory(root, case)
    return write_bundle(directory, case, arguments, expected, (), result, found_in=case.case_id)


def _face(arguments: Arguments) -> Face:
    parts: list[object] = [arguments.spec.name]
    for name, held in arguments.values.items():
        if isinstance(held, torch.Tensor):
            parts.append((name, tuple(held.shape), held.dtype))
        elif isinstance(held, QuantisedWeight):
            parts.append((name, tuple(held.codes.shape), held.layout))
        else:
            parts.append((name, held))
    return tuple(parts)


def described(kept: list[Arguments]) -> Mapping[str, int]:
    """Op -> number of calls kept."""
    counts: dict[str, int] = {}
    for arguments in kept:
        counts[arguments.spec.name] = counts.get(arguments.spec.name, 0) + 1
    return counts
