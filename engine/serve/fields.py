"""Reading a request body: null means absent, a wrong type is a 400 that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from engine.serve.errors import bad_request

__all__ = ["Fields", "parse_body"]


def parse_body(body: bytes) -> Fields:
    """A JSON object.

    Raises:
        ApiError: no JSON, or no object.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request("the body is not a JSON object")
    return Fields(value)


class Fields:
    """A JSON object with typed access; fields nobody asks for are ignored."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def raw(self, name: str) -> Any:
        """The value, None where it is absent or null."""
        return self._values.get(name)

    def integer(self, name: str, default: int, low: int | None = None) -> int:
        """A whole number of at least `low`."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad_request(f"{name} must be an integer, it is {value!r}", name)
        if low is not None and value < low:
            raise bad_request(f"{name} must be at least {low}, it is {value}", name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number in [low, high]."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise bad_request(f"{name} must be a number, it is {value!r}", name)
        if not math.isfinite(value) or not low <= value <= high:
            raise bad_request(f"{name} must lie in {low:g}..{high:g}, it is {value}", name)
        return float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be true or false, it is {value!r}", name)
        return value

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise bad_request(f"{name} must be a string, it is {value!r}", name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings."""
        value = self.raw(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise bad_request(f"{name} must be a string or a list of strings", name)
        return tuple(items)

    def table(self, name: str) -> Fields:
        """A nested object; empty where absent."""
        value = self.raw(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise bad_request(f"{name} must be an object, it is {value!r}", name)
        return Fields(value)

    def neutral(self, name: str, *neutral: Any) -> None:
        """Refuse a field that would change the result and that this server does not carry out."""
        value = self.raw(name)
        if value is not None and value not in neutral:
            raise bad_request(f"{name}={value!r} is not supported by this server", name)
