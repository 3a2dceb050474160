"""TOML of suites/sweeps -> SweepSpec. The format is described in suites/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.sweep_spec import SweepSpec
from suites.token_reader import settings_fields
from suites.toml_file import Table, read_toml

__all__ = ["read_sweep_suite"]

_INTEGERS = ("num_repeats", "num_warmups", "seed", "num_prompts", "max_repeats")
_NUMBERS = ("interval_goal", "budget_s")
# A single value is the old form of an axis of one.
_AXES = {"output_len": "output_lens", "concurrency": "concurrencies"}


def read_sweep_suite(path: Path) -> SweepSpec:
    """Read one file.

    Raises:
        InputError: unknown key, a value of the wrong type, or one that SweepSpec refuses.
    """
    top = read_toml(path)
    fields: dict[str, Any] = {
        "name": path.stem,
        "input_lens": top.many("input_lens", int),
        "description": top.one("description", str, ""),
    }
    for key, axis in _AXES.items():
        if top.has(key) or key == "output_len":
            values = top.many(key, int)
            fields |= {key: values[0], axis: values if len(values) > 1 else ()}
    for key in _NUMBERS:
        if top.has(key):
            fields[key] = top.one(key, float)
    if top.has("request_rates"):
        fields["request_rates"] = top.many("request_rates", float)
    if top.has("arrival"):
        fields["arrival"] = top.one("arrival", str)
    if top.has("bucket_sets"):
        fields["bucket_sets"] = _bucket_sets(top)
    for key in ("cps", "eps"):
        if top.has(key):
            fields[key] = top.many(key, int)
    for key in ("numerics", "prefills"):
        if top.has(key):
            fields[key] = top.many(key, str)
    if top.has("ops"):
        fields["ops"] = _op_tables(top)
    for key in _INTEGERS:
        if top.has(key):
            fields[key] = top.one(key, int)
    if top.has("ignore_eos"):
        fields["ignore_eos"] = top.one("ignore_eos", bool)
    fields["engine"] = settings_fields(top.table("engine"))
    top.close()
    spec = top.build("", lambda: SweepSpec(**fields))
    top.build("", lambda: spec.settings(""))
    return spec


def _bucket_sets(top: Table) -> tuple[tuple[int, ...], ...]:
    """`bucket_sets` is a list of lists of context lengths."""
    value = top.raw("bucket_sets")
    good = isinstance(value, list) and all(
        isinstance(item, list) and item and all(type(length) is int for length in item)
        for item in value
    )
    if not good:
        raise top.error("bucket_sets", value, "a list of lists: [[2048, 4096], [8448]]")
    return tuple(tuple(item) for item in value)


def _op_tables(top: Table) -> tuple[tuple[str, ...], ...]:
    """`ops` is a list of tables, each a list of targets laid over one another."""
    value = top.raw("ops")
    good = isinstance(value, list) and all(
        isinstance(item, list) and item and all(isinstance(text, str) for text in item)
        for item in value
    )
    if not good:
        raise top.error("ops", value, 'a list of lists: [["references.op_table:TABLE"], ...]')
    return tuple(tuple(item) for item in value)
