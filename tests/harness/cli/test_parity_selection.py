"""Tiers and presets by name."""

from __future__ import annotations

import pytest

from harness.cli.main import main
from harness.cli.parity import select_cases
from harness.core.ops import OP_SHEET


def test_the_preset_all_holds_every_op_and_600_cases() -> None:
    selection = select_cases([], [], "all", "")
    assert {case.op for case in selection.cases} == set(OP_SHEET)
    assert len(selection.cases) >= 600


def test_two_tiers_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["parity", "--smoke", "--full"])
    assert ended.value.code == 2
    assert "name one tier" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "tier"), [("--smoke", "smoke"), ("--full", "full")])
def test_flags_are_short_for_tiers(flag: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note(suites: object, ops: object, preset: str, chosen: str) -> None:
        asked.append(chosen)
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.cli.parity.select_cases", note)
    with pytest.raises(SystemExit):
        main(["parity", flag])
    assert asked == [tier]
