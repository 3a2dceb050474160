"""Sizes, `__all__`, folders and texts of the files themselves."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.repo.sources import PACKAGES, ROOT, package_modules, parsed, python_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 150
TEXT_SUFFIXES = {".py", ".toml", ".md", ".json", ".txt", ".sh", ".jinja", ".css", ".js", ".jsonl"}


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    lengths = {_relative(p): len(p.read_text("utf-8").splitlines()) for p in python_files()}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}
    assert len(lengths) > 100


def _long_functions(path: Path) -> list[str]:
    limit = MAX_KERNEL_LINES if path.name.endswith("_nki.py") else MAX_FUNCTION_LINES
    return [
        f"{_relative(path)}:{node.lineno} {node.name}"
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or node.lineno) - node.lineno + 1 > limit
    ]


def test_no_function_is_longer_than_a_screen() -> None:
    assert [name for path in package_modules() for name in _long_functions(path)] == []


def _exported(tree: ast.Module) -> list[str] | None:
    """The names in `__all__`, None if there is none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [
            t.id for t in node.targets if isinstance(t, ast.Name)
        ] == ["__all__"]:
            assert isinstance(node.value, (ast.List, ast.Tuple))
            return [ast.literal_eval(element) for element in node.value.elts]
    return None


def _defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                for target in targets:
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in aliases}
            case _:
                pass
    return names


def test_every_module_says_what_it_offers_and_offers_what_it_says() -> None:
    silent, wrong = [], []
    for path in package_modules():
        tree = parsed(path)
        exported = _exported(tree)
        has_code = any(not isinstance(node, ast.Expr) for node in tree.body)
        if exported is None:
            if has_code:
                silent.append(_relative(path))
        elif not any(
            isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body
        ):
            wrong += [f"{_relative(path)}: {n}" for n in exported if n not in _defined(tree)]
    assert silent == []
    assert wrong == []


def test_every_module_has_a_docstring() -> None:
    assert [_relative(p) for p in package_modules() if not ast.get_docstring(parsed(p))] == []


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [_relative(f) for f in folders if not (f / "__init__.py").is_file()] == []


def test_no_module_is_a_drawer() -> None:
    names = {path.stem for path in python_files()}
    assert names & {"utils", "util", "helpers", "helper", "common", "misc", "manager"} == set()


def test_every_data_file_is_shipped_with_its_package() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = pyproject["tool"]["setuptools"]["package-data"]["*"]
    shipped = {
        path
        for package in PACKAGES
        for folder in {path.parent for path in (ROOT / package).rglob("__init__.py")}
        for pattern in patterns
        for path in folder.glob(pattern)
    }
    unshipped = [
        _relative(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md") and path not in shipped
    ]
    assert unshipped == []
    assert ROOT / "suites" / "ops" / "rms_norm.toml" in shipped
    assert ROOT / "tiny_checkpoints" / "MANIFEST.json" in shipped


def _texts() -> list[Path]:
    tops = [ROOT / name for name in (*PACKAGES, "tests", "scripts", "docs", ".ci")]
    below = [path for top in tops if top.is_dir() for path in top.rglob("*")]
    files = [*below, *ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    return [p for p in files if p.is_file() and (p.suffix in TEXT_SUFFIXES or not p.suffix)]


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    machine_path = re.compile(r"(?<![\w.])/(?:work|root|home)/\w")
    found = [
        f"{_relative(path)}: {match.group()}"
        for path in _texts()
        if (match := machine_path.search(path.read_text("utf-8", errors="replace")))
    ]
    assert found == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"])
def test_the_repository_has_its_documents(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8")) > 200
