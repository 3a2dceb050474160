"""`rescale-loss` lists what each fp8 weight loses, and says how many lose nothing."""

from __future__ import annotations

import re

import pytest

from harness.cli.main import main
from tests.engine.oracle import directory


def test_tensors_are_listed_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["rescale-loss", str(directory("stress")), "--all"])
    assert ended.value.code in (None, 0)
    *rows, last = capsys.readouterr().out.splitlines()[1:]
    found = re.fullmatch(r"(\d+) fp8 tensors, (\d+) of them carried over without loss", last)
    assert found
    assert len(rows) == int(found[1])
    inexact = [int(row.split()[1].split("/")[0]) for row in rows]
    assert inexact.count(0) == int(found[2])
