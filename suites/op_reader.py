"""TOML of suites/ops -> OpSuite. The format is described in suites/README.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness.core.case import Case, Tolerance
from harness.core.errors import VacuousError
from harness.core.op_axes import FAMILIES, LAYOUTS, OP_AXES
from harness.core.ops import OP_SHEET, OpSpec
from harness.core.suggest import near_names
from suites.op_suite import TIERS, OpSuite
from suites.toml_file import Table, read_toml

__all__ = ["needs_tolerance", "read_op_suite"]

_DTYPES = ("bfloat16", "float32")
_SCALAR_TYPES = (bool, int, float, str)
# vocab_topk's values are copies of logits: compared bit for bit although the kind is a float.
_COPIED_OUTPUTS = {("vocab_topk", "values")}


def read_op_suite(path: Path) -> OpSuite:
    """Read one file.

    Raises:
        InputError: unknown key, op, axis, family, layout or tier, a missing or needless
            tolerance, two cases of one id; names file and key.
        VacuousError: no case.
    """
    top = read_toml(path)
    ops = top.many("op", str)
    for op in ops:
        if op not in OP_SHEET:
            raise top.error("op", op, f"unknown op{near_names(op, OP_SHEET)}")
    stems = {OP_SHEET[op].stem for op in ops}
    if len(stems) != 1:
        raise top.error("op", list(ops), "the ops of one file share one stem of the sheet")
    tolerances = {op: _tolerances(top, OP_SHEET[op]) for op in ops}
    tiers: dict[str, str] = {}
    cases: list[Case] = []
    for table in top.tables("cases"):
        tier = _choice(table, "tier", TIERS, "default")
        for case in _cases(table, ops):
            if case.case_id in tiers:
                raise table.error("seed", case.seed, f"case {case.case_id} exists; change the seed")
            tiers[case.case_id] = tier
            cases.append(case)
    device = _device_cases(top, cases)
    top.close()
    if not cases:
        raise VacuousError(f"{path}: the suite is empty; add a [[cases]] table")
    return OpSuite(stems.pop(), tuple(cases), tiers, tolerances, device)


def _device_cases(top: Table, cases: list[Case]) -> tuple[str, ...]:
    """Ids of the cases worth a compile on a device."""
    ids = top.many("device", str, ())
    known = {case.case_id for case in cases}
    for case_id in ids:
        if case_id not in known:
            raise top.error("device", case_id, f"no such case{near_names(case_id, known)}")
    return ids


def needs_tolerance(spec: OpSpec, output: str) -> bool:
    """Whether a budget judges this output; others are compared bit for bit."""
    kind = next(value.kind for value in spec.outputs if value.name == output)
    return kind in ("act", "acc") and not spec.exact and (spec.name, output) not in _COPIED_OUTPUTS


def _tolerances(top: Table, spec: OpSpec) -> dict[str, Tolerance]:
    """Exactly the outputs that need one; `[tolerance.<output>]`."""
    wanted = [value.name for value in spec.outputs if needs_tolerance(spec, value.name)]
    tables = top.table("tolerance")
    for name in tables.keys():  # noqa: SIM118 - a method of Table, not a dict
        if name not in wanted:
            raise tables.error(
                name, "a tolerance", f"no budget judges this output of {spec.name}; remove it"
            )
    missing = [name for name in wanted if not tables.has(name)]
    if missing:
        raise tables.error(missing[0], "absent", f"output {missing[0]} needs a tolerance")
    budgets: dict[str, Tolerance] = {}
    for name in wanted:
        table = tables.table(name)
        if table.has("accumulate"):  # of cases whose output stays an unrounded partial sum
            budgets[f"{name}.accumulate"] = _tolerance(table.table("accumulate"))
        budgets[name] = _tolerance(table)
    return budgets


def _tolerance(table: Table) -> Tolerance:
    values = (
        table.one("c", float),
        table.one("c_max", float),
        table.one("floor", float),
        table.many("slice_axes", int),
        table.one("reason", str),
    )
    table.close()
    return table.build("", lambda: Tolerance(*values))


def _cases(table: Table, ops: tuple[str, ...]) -> Iterator[Case]:
    """The product of a table's lists, axes varying fastest in the order of the sheet."""
    op = _choice(table, "op", ops, ops[0])
    letters, lengths = _axes(table.table("axes"), op)
    families = _choices(table, "family", FAMILIES, "base")
    layouts = _choices(table, "layout", LAYOUTS, "contiguous")
    dtypes = _choices(table, "dtype", _DTYPES, "bfloat16")
    seeds = table.many("seed", int, (0,))
    probe = table.one("probe", bool, False)
    lnc = table.one("lnc", int, 0)
    scalars = _scalars(table.table("scalars"))
    table.has("tier")
    table.close()
    for family, layout, dtype, seed in itertools.product(families, layouts, dtypes, seeds):
        for values in itertools.product(*lengths):
            axes = dict(zip(letters, values, strict=True))
            made = (op, axes, dtype, family, seed, layout, scalars, probe, lnc)
            yield table.build("axes", partial(Case, *made))


def _axes(table: Table, op: str) -> tuple[list[str], list[tuple[int, ...]]]:
    known = {letter.rstrip("?"): letter.endswith("?") for letter in OP_AXES[op]}
    letters = [
        letter for letter, is_optional in known.items() if table.has(letter) or not is_optional
    ]
    lengths = [table.many(letter, int) for letter in letters]
    table.close()
    for letter, values in zip(letters, lengths, strict=True):
        if min(values) < 1:
            raise table.error(letter, list(values), "a length is at least 1")
    return letters, lengths


def _scalars(table: Table) -> dict[str, float | int | str | bool]:
    scalars = {}
    for name in table.keys():  # noqa: SIM118 - a method of Table, not a dict
        value = table.raw(name)
        if not isinstance(value, _SCALAR_TYPES):
            raise table.error(name, value, "a scalar is a number, a text or true/false")
        scalars[name] = value
    return scalars


def _choice(table: Table, key: str, known: tuple[str, ...], default: str) -> str:
    return _checked(table, key, (table.one(key, str, default),), known)[0]


def _choices(table: Table, key: str, known: tuple[str, ...], default: str) -> tuple[str, ...]:
    return _checked(table, key, table.many(key, str, (default,)), known)


def _checked(
    table: Table, key: str, values: tuple[str, ...], known: tuple[str, ...]
) -> tuple[str, ...]:
    for value in values:
        if value not in known:
            raise table.error(key, value, f"unknown {key}{near_names(value, known)}")
    return values
