"""Reading TOML strictly: every key is asked for once, what is left over is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import HarnessError, InputError
from harness.core.suggest import near_names

__all__ = ["Table", "read_toml"]

T = TypeVar("T")
_KIND_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


class Table:
    """One table of a file. `where` is its place in words, for messages.

    Args:
        file: path as shown to people.
        where: "" for the top level, "cases[2]", "prompts 'short'", ...
        content: what tomllib gave.
    """

    def __init__(self, file: Path, where: str, content: dict[str, Any]) -> None:
        self.file = file
        self.where = where
        self._content = content
        self._asked: list[str] = []

    def has(self, key: str) -> bool:
        """Whether the key is present; counts as asked for."""
        self._asked.append(key)
        return key in self._content

    def one(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A single value of `kind`; int is accepted for float, bool never for int.

        Raises:
            InputError: absent without a default, or of another type.
        """
        if not self.has(key):
            if default is None:
                raise self.error(key, "absent", "add the key")
            return default
        return self._as(key, self._content[key], kind)

    def many(self, key: str, kind: type[T], default: Iterable[T] | None = None) -> tuple[T, ...]:
        """A list of `kind`; a single value stands for a list of one.

        Raises:
            InputError: absent without a default, empty, or an element of another type.
        """
        if not self.has(key):
            if default is None:
                raise self.error(key, "absent", "add the key")
            return tuple(default)
        value = self._content[key]
        items = value if isinstance(value, list) else [value]
        if not items:
            raise self.error(key, value, "give at least one value")
        return tuple(self._as(key, item, kind) for item in items)

    def table(self, key: str) -> Table:
        """A sub-table; empty if absent."""
        value = self._content.get(key, {}) if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.error(key, value, "must be a table")
        return Table(self.file, self._path(key), value)

    def tables(self, key: str) -> list[Table]:
        """An array of tables; empty if absent."""
        value = self._content.get(key, []) if self.has(key) else []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, value, f"must be an array of tables: [[{key}]]")
        return [
            Table(self.file, f"{self._path(key)}[{index}]", item)
            for index, item in enumerate(value)
        ]

    def keys(self) -> tuple[str, ...]:
        """Every key, all of them then counting as asked for."""
        self._asked.extend(self._content)
        return tuple(self._content)

    def raw(self, key: str) -> Any:
        """A value as TOML gave it."""
        self._asked.append(key)
        return self._content[key]

    def close(self) -> None:
        """Refuse what nobody asked for.

        Raises:
            InputError: an unknown key; the message lists near names.
        """
        for key in self._content:
            if key not in self._asked:
                remedy = f"unknown key{near_names(key, set(self._asked))}"
                raise self.error(key, self._content[key], remedy)

    def build(self, key: str, make: Callable[[], T]) -> T:
        """`make()`, with a complaint of the object it makes turned into one about this file."""
        try:
            return make()
        except InputError:
            raise
        except HarnessError as error:
            raise self.error(key, "refused", str(error)) from error

    def error(self, key: str, value: object, remedy: str) -> InputError:
        """An error about one key of this table."""
        return InputError(self.file, self._path(key), value, remedy)

    def _path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where and key else self.where or key

    def _as(self, key: str, value: Any, kind: type[T]) -> T:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind is float and is_number:
            return kind(value)  # type: ignore[call-arg]
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise self.error(key, value, f"must be {_KIND_NAMES[kind]}")


def read_toml(path: Path) -> Table:
    """The top-level table of a file.

    Raises:
        InputError: absent, unreadable or no TOML.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(path, "file", "absent", "give the path of an existing file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, "file", str(error), "the file must be readable UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(path, "syntax", str(error), "correct the TOML at this place") from error
    return Table(path, "", content)
