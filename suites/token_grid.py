"""A grid of a token suite: one pair for every combination of setting values against one oracle.

[[grids]]
name = "exact"            # pairs are named "exact cp=2 chunk=5", after what differs from the oracle
oracle = "exact"          # a setting of the suite; values it has itself are its own
judge = "equal"
logit_bound = 1e-9
batch = [1, 3]            # prompts the candidate continues together; optional
without = [{cp = 1, ep = 2}]   # combinations that make no sense, left out by name
[grids.axes]
cp = [1, 2]
enforce_eager = [true, false]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from harness.core.engine_face import EngineSettings
from harness.core.suggest import near_names
from harness.core.token_suite import TokenPair
from suites.toml_file import Table

__all__ = ["grid_pairs"]

_NOT_AXES = ("checkpoint", "time_limit_s", "num_threads")
_LISTS = ("ops", "context_buckets", "allowed_fallbacks")


def grid_pairs(table: Table, settings: Mapping[str, EngineSettings]) -> tuple[TokenPair, ...]:
    """The pairs of one grid, in the order of its axes; the oracle against itself is none.

    Raises:
        InputError: an unknown setting or axis, an axis without a value, a combination that
            EngineSettings refuses.
    """
    name = table.one("name", str)
    oracle = _setting(table, "oracle", table.one("oracle", str), settings)
    noise = tuple(_setting(table, "noise", one, settings) for one in table.many("noise", str, ()))
    common: dict[str, Any] = {
        "oracle": oracle,
        "judge": table.one("judge", str),
        "logit_bound": table.one("logit_bound", float) if table.has("logit_bound") else None,
        "noise": noise,
    }
    batches = table.many("batch", int, (1,))
    axes = _axes(table.table("axes"))
    without = [_axis_values(one) for one in table.tables("without")]
    table.close()
    pairs = []
    for values in _product(axes, without):
        candidate = table.build("axes", partial(replace, oracle, **values))
        for batch in batches:
            if candidate == oracle and batch == 1:
                continue
            label = " ".join([name, *_differences(oracle, candidate)])
            label += f" batch={batch}" if batch > 1 else ""
            own: dict[str, Any] = {"name": label, "candidate": candidate, "batch": batch}
            pairs.append(table.build("", partial(TokenPair, **own, **common)))
    return tuple(pairs)


def _setting(
    table: Table, key: str, name: str, settings: Mapping[str, EngineSettings]
) -> EngineSettings:
    if name not in settings:
        raise table.error(key, name, f"unknown setting{near_names(name, settings)}")
    return settings[name]


def _axes(table: Table) -> dict[str, tuple[Any, ...]]:
    known = [item.name for item in fields(EngineSettings) if item.name not in _NOT_AXES]
    axes: dict[str, tuple[Any, ...]] = {}
    for key in table.keys():  # noqa: SIM118 - a method of Table, not a dict
        if key not in known:
            raise table.error(key, table.raw(key), f"unknown axis{near_names(key, known)}")
        values = table.raw(key)
        if not isinstance(values, list) or not values:
            raise table.error(key, values, "give a list of values")
        axes[key] = tuple(_value(table, key, one) for one in values)
    if not axes:
        raise table.error("", "empty", "a grid needs an axis")
    return axes


def _axis_values(table: Table) -> dict[str, Any]:
    return {key: _value(table, key, table.raw(key)) for key in table.keys()}  # noqa: SIM118


def _value(table: Table, key: str, value: Any) -> Any:
    """A value of the field's own type; lists become tuples."""
    if key in _LISTS:
        return tuple(value) if isinstance(value, list) else (value,)
    kinds = {item.name: type(item.default) for item in fields(EngineSettings)}
    kind = kinds.get(key, str)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise table.error(key, value, f"must be of type {kind.__name__}")
    return value


def _product(
    axes: Mapping[str, tuple[Any, ...]], without: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        if not any(one.items() <= values.items() for one in without):
            yield values


def _differences(oracle: EngineSettings, candidate: EngineSettings) -> Iterator[str]:
    """ "cp=2", "context_buckets=32,64": what the candidate has of its own."""
    for item in fields(EngineSettings):
        value = getattr(candidate, item.name)
        if value == getattr(oracle, item.name):
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        yield f"{item.name}={text}"
