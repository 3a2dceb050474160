"""Wrong kernels read from TOML and loaded: the edited source runs, nothing on disk changes."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels
from harness.core.ops import op_named

__all__ = ["WrongKernel", "loaded", "read_wrong_kernels"]

_HERE = Path(__file__).parent
_KERNELS = Path(next(iter(kernels.__path__)))
# The runtime and its counters are shared by right and wrong kernels.
_SHARED = ("kernels.launch", "kernels.sdk", "kernels.interpreter")


@dataclass(frozen=True, slots=True)
class WrongKernel:
    """One edit of one file of kernels/; see README.md."""

    name: str
    op: str
    file: str
    old: str
    new: str
    why: str
    lnc: int = 1

    def source(self) -> str:
        """The edited source.

        Raises:
            ValueError: the edit does not apply, or not to exactly one place.
        """
        text = (_KERNELS / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: the edit applies to {found} places of {self.file}")
        return text.replace(self.old, self.new)


def read_wrong_kernels() -> list[WrongKernel]:
    """Every entry of every TOML file beside this one.

    Raises:
        ValueError: a name occurs twice.
    """
    entries: list[WrongKernel] = []
    for path in sorted(_HERE.glob("*.toml")):
        body = tomllib.loads(path.read_text(encoding="utf-8"))
        entries.extend(WrongKernel(**entry) for entry in body["wrong"])
    names = [entry.name for entry in entries]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"wrong kernels of one name: {sorted(twice)}")
    return entries


@contextmanager
def loaded(wrong: WrongKernel) -> Iterator[Callable[..., Any]]:
    """The op with the edit in force. Its modules are imported afresh beside the right ones."""
    source = wrong.source()
    right = {name: module for name, module in sys.modules.items() if _is_private(name)}
    attributes = dict(vars(kernels))
    for name in right:
        del sys.modules[name]
    try:
        _execute(source, f"kernels.{wrong.file.removesuffix('.py')}", _KERNELS / wrong.file)
        module = importlib.import_module(f"kernels.{op_named(wrong.op).stem}_nki")
        yield getattr(module, wrong.op)
    finally:
        for name in [name for name in sys.modules if _is_private(name)]:
            del sys.modules[name]
        sys.modules.update(right)
        vars(kernels).clear()
        vars(kernels).update(attributes)


def _is_private(name: str) -> bool:
    return name.startswith("kernels.") and not name.startswith(_SHARED)


def _execute(source: str, name: str, path: Path) -> None:
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = "kernels"
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), vars(module))
