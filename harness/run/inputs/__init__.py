"""Seeded inputs for every op of the sheet: `build_inputs(case)` and what guards them."""

from harness.run.inputs.arguments import Arguments
from harness.run.inputs.build import OP_SCALARS, build_inputs
from harness.run.inputs.guard import Snapshot

__all__ = ["OP_SCALARS", "Arguments", "Snapshot", "build_inputs"]
