"""Whether AWS's `nki` is installed, and whether it is the real one.

The public package index serves an empty placeholder under the name `nki`; the real package comes
from AWS's own index. The bundled interpreter may also answer under that name in its own process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["SdkState", "find_nki"]

_REQUIRED_PARTS = ("isa", "language")
_SUFFIXES = ("", ".py", ".pyi", ".so", ".pyc")


@dataclass(frozen=True, slots=True)
class SdkState:
    """What stands under the name `nki`.

    Attributes:
        kind: "real", "placeholder" (a package without nki.isa and nki.language), "interpreter"
            (ours, under that name) or "absent".
        version: of the installed distribution, "" where there is none.
        location: directory of the package, "" where there is none.
    """

    kind: Literal["real", "placeholder", "interpreter", "absent"]
    version: str = ""
    location: str = ""

    @property
    def reason(self) -> str:
        """Why it cannot serve, with the remedy; "" for the real one."""
        remedy = "install nki from AWS's package index (pip install 'neuron-harness[neuron]')"
        if self.kind == "placeholder":
            return (
                f"the package nki {self.version} at {self.location} is the empty placeholder of "
                f"the public index, it has no nki.isa: {remedy}"
            )
        if self.kind == "interpreter":
            return f"nki is the bundled interpreter in this process: {remedy}"
        return f"nki is not installed: {remedy}" if self.kind == "absent" else ""


def find_nki() -> SdkState:
    """Look for `nki` without importing it."""
    loaded = sys.modules.get("nki")
    if loaded is not None and loaded.__name__.startswith("kernels."):
        return SdkState("interpreter")
    try:
        spec = importlib.util.find_spec("nki")
    except ValueError:  # a module put into sys.modules by hand, without a spec
        return SdkState("interpreter")
    if spec is None:
        return SdkState("absent")
    locations = [Path(folder) for folder in spec.submodule_search_locations or ()]
    version = _version()
    location = str(locations[0]) if locations else str(spec.origin)
    if all(_has_part(locations, part) for part in _REQUIRED_PARTS):
        return SdkState("real", version, location)
    return SdkState("placeholder", version, location)


def _has_part(locations: list[Path], part: str) -> bool:
    for folder in locations:
        if any((folder / f"{part}{suffix}").exists() for suffix in _SUFFIXES):
            return True
        if any(folder.glob(f"{part}.*.so")):
            return True
    return False


def _version() -> str:
    try:
        return importlib.metadata.version("nki")
    except importlib.metadata.PackageNotFoundError:
        return ""
