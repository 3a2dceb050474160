"""The repository's own files, for tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PACKAGES", "ROOT", "module_name", "package_modules", "parsed", "python_files"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "engine", "kernels", "references", "suites", "reports", "tiny_checkpoints")


def package_modules() -> list[Path]:
    """Every Python file of the packages."""
    return [path for package in PACKAGES for path in _python_below(ROOT / package)]


def python_files() -> list[Path]:
    """Every Python file of packages and tests."""
    return [*package_modules(), *_python_below(ROOT / "tests")]


def module_name(path: Path) -> str:
    """ "kernels.launch" of kernels/launch.py; a package's name of its __init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parsed(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _python_below(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts)
