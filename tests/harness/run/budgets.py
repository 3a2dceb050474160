"""Budgets for judging the judge: tight, and floors far below any value.

A rounded output has its baseline's rounding in common with any right kernel; what stays unrounded
has an error that depends on the order of the sums alone, which differs by a small factor.
"""

from __future__ import annotations

from harness.core.case import Tolerance
from harness.core.ops import OP_SHEET
from harness.run.verdict import needs_tolerance

__all__ = ["TOLERANCES"]

TOLERANCES = {
    op: {
        value.name: Tolerance(
            c=1.25 if value.kind == "act" else 6.0,
            c_max=2.0 if value.kind == "act" else 8.0,
            floor=1e-7,
            slice_axes=(0,),
            reason="other orders of fp32 sums",
        )
        for value in spec.outputs
        if needs_tolerance(spec, value.name)
    }
    for op, spec in OP_SHEET.items()
}
