"""TOML of suites/gates -> GateSpec. The format is described in suites/README.md."""

from __future__ import annotations

from pathlib import Path

from harness.core.gate_spec import GateSpec, PrimaryMetric
from suites.toml_file import Table, read_toml

__all__ = ["read_gate_suite"]


def read_gate_suite(path: Path) -> GateSpec:
    """Read one file.

    Raises:
        InputError: unknown key, a value of the wrong type, or one that GateSpec refuses.
    """
    top = read_toml(path)
    deterministic = top.many("deterministic", str, ())
    primary = tuple(_primary(table) for table in top.tables("primary"))
    min_pairs, alpha = top.one("min_pairs", int, 10), top.one("alpha", float, 0.05)
    timing_counts = top.one("timing_counts", bool, True)
    description = top.one("description", str, "")
    top.close()
    return top.build(
        "",
        lambda: GateSpec(
            path.stem, deterministic, primary, min_pairs, alpha, timing_counts, description
        ),
    )


def _primary(table: Table) -> PrimaryMetric:
    name, floor = table.one("name", str), table.one("floor", float)
    threshold = table.one("threshold", float, 0.03)
    table.close()
    return table.build("", lambda: PrimaryMetric(name, floor, threshold))
