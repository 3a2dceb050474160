"""Typed reading of one JSON object; every failure names file, key, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.core.errors import InputError

__all__ = ["JsonSource"]

_MISSING = object()


class JsonSource:
    """A JSON object with the file it came from.

    Args:
        file: path for messages.
        values: the object.
        prefix: dotted prefix of its keys in messages, e.g. "text_config.".
    """

    def __init__(self, file: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.file = file
        self.values = values
        self.prefix = prefix

    def error(self, key: str, value: object, remedy: str) -> InputError:
        """An InputError about `key` of this object."""
        return InputError(self.file, self.prefix + key, value, remedy)

    def _get(self, key: str, default: object) -> Any:
        if self.values.get(key) is not None:
            return self.values[key]
        if default is _MISSING:
            raise self.error(key, None, "add it; this architecture needs it")
        return default

    def integer(self, key: str, default: object = _MISSING, *, minimum: int = 1) -> int:
        """An integer of at least `minimum`."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, value, "an integer belongs here")
        if value < minimum:
            raise self.error(key, value, f"it must be at least {minimum}")
        return value

    def number(self, key: str, default: object = _MISSING) -> float:
        """A finite, positive number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, value, "a number belongs here")
        if not math.isfinite(value) or value <= 0:
            raise self.error(key, value, "it must be positive and finite")
        return float(value)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        """true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false belongs here")
        return value

    def integers(self, key: str, default: object = _MISSING) -> tuple[int, ...]:
        """A list of integers >= 0."""
        value = self._get(key, default)
        if not isinstance(value, (list, tuple)) or any(
            isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value
        ):
            raise self.error(key, value, "a list of integers, none negative, belongs here")
        return tuple(value)
