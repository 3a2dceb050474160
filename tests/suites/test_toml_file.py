"""Strict reading: types, leftovers and broken files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import InputError
from suites.toml_file import Table, read_toml


def _table(**content: object) -> Table:
    return Table(Path("x.toml"), "cases[0]", dict(content))


def test_values_come_back_with_their_type() -> None:
    table = _table(a=1, b=2, c=[1, 2], d=True, e=5)
    assert table.one("a", int) == 1
    assert table.one("b", float) == 2.0
    assert isinstance(table.one("b", float), float)
    assert table.many("c", int) == (1, 2)
    assert table.many("a", int) == (1,)
    assert table.one("d", bool, False) is True
    assert table.one("z", str, "default") == "default"
    with pytest.raises(InputError, match=r"cases\[0\].e is 5: unknown key"):
        table.close()


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        ("1", int, "an integer"),
        (1.5, int, "an integer"),
        (True, int, "an integer"),
        (True, float, "a number"),
        (1, str, "a text"),
        (1, bool, "true or false"),
        ([1], int, "an integer"),
    ],
)
def test_a_wrong_type_is_refused(value: object, kind: type, remedy: str) -> None:
    with pytest.raises(InputError, match=f"must be {remedy}"):
        _table(a=value).one("a", kind)


def test_absent_and_empty_are_refused() -> None:
    with pytest.raises(InputError, match=r"cases\[0\].a is 'absent': add the key"):
        _table().one("a", int)
    with pytest.raises(InputError, match="at least one value"):
        _table(a=[]).many("a", int)
    with pytest.raises(InputError, match="must be a table"):
        _table(a=1).table("a")
    with pytest.raises(InputError, match="array of tables"):
        _table(a=[1]).tables("a")


def test_a_leftover_key_is_answered_with_near_names() -> None:
    table = _table(toleranec=1)
    table.has("tolerance")
    with pytest.raises(InputError, match="did you mean tolerance"):
        table.close()


@pytest.mark.parametrize(
    ("content", "message"), [(b"a = ", "syntax"), (b"a = 1\na = 2", "syntax"), (b"\xff", "UTF-8")]
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_toml(path)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file is 'absent'"):
        read_toml(tmp_path / "none.toml")
