"""TOML of suites/tokens -> TokenSuite. The format is described in suites/README.md."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.engine_face import EngineSettings
from harness.core.errors import VacuousError
from harness.core.suggest import near_names
from harness.core.token_suite import NearTieLimits, Prompt, TokenPair, TokenSuite
from suites.token_grid import grid_pairs
from suites.toml_file import Table, read_toml

__all__ = ["read_token_suite", "settings_fields"]

_LISTS = {"ops": str, "context_buckets": int, "allowed_fallbacks": str}
_TEXTS = ("numerics", "device", "speculative", "prefill", "compile_backend")
_NUMBERS = ("time_limit_s", "confidence_threshold")
_SWITCHES = ("enforce_eager",)


def read_token_suite(path: Path) -> TokenSuite:
    """Read one file.

    Raises:
        InputError: unknown key or setting, a value that the core object refuses.
        VacuousError: no prompt or no pair.
    """
    top = read_toml(path)
    description = top.one("description", str, "")
    variant = top.one("checkpoint", str)
    limits = _limits(top.table("limits"))
    settings = _settings(top.table("settings"))
    prompts = tuple(_prompt(table) for table in top.tables("prompts"))
    pairs = tuple(_pair(table, settings) for table in top.tables("pairs"))
    for table in top.tables("grids"):
        pairs += grid_pairs(table, settings)
    top.close()
    if not prompts or not pairs:
        raise VacuousError(
            f"{path}: the suite is empty; it needs [[prompts]] and [[pairs]] or [[grids]]"
        )
    return top.build(
        "pairs", lambda: TokenSuite(path.stem, variant, prompts, pairs, limits, description)
    )


def settings_fields(table: Table) -> dict[str, Any]:
    """Keyword arguments of EngineSettings; `checkpoint` is the command line's.

    Raises:
        InputError: a value of the wrong type, or an unknown key.
    """
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(EngineSettings):
        if item.name == "checkpoint" or not table.has(item.name):
            continue
        if item.name in _LISTS:
            fields[item.name] = table.many(item.name, _LISTS[item.name])
        elif item.name in _TEXTS:
            fields[item.name] = table.one(item.name, str)
        elif item.name in _NUMBERS:
            fields[item.name] = table.one(item.name, float)
        elif item.name in _SWITCHES:
            fields[item.name] = table.one(item.name, bool)
        else:
            fields[item.name] = table.one(item.name, int)
    table.close()
    return fields


def _settings(tables: Table) -> dict[str, EngineSettings]:
    settings = {}
    for name in tables.keys():  # noqa: SIM118 - a method of Table, not a dict
        table = tables.table(name)
        fields = settings_fields(table)
        settings[name] = table.build("", partial(EngineSettings, "", **fields))
    return settings


def _limits(table: Table) -> NearTieLimits:
    given = {
        item.name: table.one(item.name, float)
        for item in dataclasses.fields(NearTieLimits)
        if table.has(item.name)
    }
    table.close()
    return NearTieLimits(**given)


def _prompt(table: Table) -> Prompt:
    fields: dict[str, Any] = {
        "name": table.one("name", str),
        "max_tokens": table.one("max_tokens", int),
        "ids": table.many("ids", int, ()),
        "length": table.one("length", int, 0),
        "seed": table.one("seed", int, 0),
        "min_window_wraps": table.one("min_window_wraps", int, 0),
        "min_blocks_excluded_share": table.one("min_blocks_excluded_share", float, 0.0),
    }
    table.close()
    return table.build("", lambda: Prompt(**fields))


def _pair(table: Table, settings: dict[str, EngineSettings]) -> TokenPair:
    def named(key: str, name: str) -> EngineSettings:
        if name not in settings:
            raise table.error(key, name, f"unknown setting{near_names(name, settings)}")
        return settings[name]

    fields: dict[str, Any] = {
        "name": table.one("name", str),
        "candidate": named("candidate", table.one("candidate", str)),
        "oracle": named("oracle", table.one("oracle", str)),
        "judge": table.one("judge", str),
        "logit_bound": table.one("logit_bound", float) if table.has("logit_bound") else None,
        "batch": table.one("batch", int, 1),
        "noise": tuple(named("noise", name) for name in table.many("noise", str, ())),
    }
    table.close()
    return table.build("", lambda: TokenPair(**fields))
