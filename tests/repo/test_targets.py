"""String targets ("package.module:object"), which the import contract cannot see."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from harness.core.registry import resolve_target
from tests.repo.sources import PACKAGES, ROOT, module_name, package_modules, parsed

TARGET = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+:\w+")
ISLANDS = ("engine", "kernels", "references", "tiny_checkpoints")


def _targets_in_code(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and TARGET.fullmatch(node.value)
    }


def _targets_in_suites() -> set[str]:
    return {
        target
        for path in (ROOT / "suites").rglob("*.toml")
        for target in TARGET.findall(path.read_text("utf-8"))
    }


def _all_targets() -> list[str]:
    in_code = {target for path in package_modules() for target in _targets_in_code(path)}
    return sorted(in_code | _targets_in_suites())


def test_the_search_finds_the_known_targets() -> None:
    assert {"references.op_table:TABLE", "kernels.op_table:TABLE"} <= set(_all_targets())


@pytest.mark.parametrize("target", _all_targets())
def test_a_target_resolves(target: str) -> None:
    assert resolve_target(target) is not None


def test_no_island_names_another_island() -> None:
    crossing = [
        f"{module_name(path)} names {target}"
        for path in package_modules()
        for target in _targets_in_code(path)
        if (home := module_name(path).partition(".")[0]) in ISLANDS
        and (there := target.partition(".")[0]) in ISLANDS
        and home != there
    ]
    assert crossing == []
