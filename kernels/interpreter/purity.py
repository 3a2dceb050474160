"""What a kernel's instructions depend on besides its arguments: code and globals it reaches."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

__all__ = ["Dependencies"]

_MISSING = object()


class Dependencies:
    """The globals that a function and the functions it calls read, as they are now.

    Attributes:
        pure: no closure and no mutable global is among them.
    """

    __slots__ = ("_seen", "pure")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._seen: list[tuple[dict[str, Any], str, Any]] = []
        self.pure = True
        self._follow(function, set())

    def unchanged(self) -> bool:
        """Whether every global still is the object it was."""
        return all(where.get(name, _MISSING) is value for where, name, value in self._seen)

    def _follow(self, function: Any, visited: set[int]) -> None:
        function = getattr(function, "function", function)  # a jitted kernel
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or id(function) in visited:
            return
        if function.__module__.startswith("kernels.interpreter"):
            return
        visited.add(id(function))
        if function.__closure__ is not None:
            self.pure = False
            return
        for name in _global_names(function.__code__):
            value = function.__globals__.get(name, _MISSING)
            if value is _MISSING:
                continue
            self._seen.append((function.__globals__, name, value))
            if isinstance(value, list | dict | set):
                self.pure = False
            self._follow(value, visited)


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
