"""Stages run in order, stop at the first red, and are not run again while green."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.run.bringup import Ran, Stage, carry_out, run_logged, until
from harness.run.store import new_run, open_run

STAGES = (
    Stage("one-op", "first", (("parity", "--op", "rms_norm"),)),
    Stage("tiny", "two commands", (("checkpoint", "make"), ("tokens", "--cp", "2"))),
    Stage("real", "last", (("generate",),)),
)
_RED = "neuron-harness parity --replay runs/x/bundles/rms_norm --backend device"


class Commands:
    """A runner that fails the commands it is told to."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.ran: list[str] = []

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        self.ran.append(arguments[0])
        with log.open("a") as out:
            out.write(f"$ {' '.join(arguments)}\nsaid\n")
            if self.codes.get(arguments[0]):
                out.write(f"  {_RED}\n")
        return self.codes.get(arguments[0], 0)


def _bring_up(
    root: Path, commands: Commands, checkpoint: str = "abc", torch: str = "2.13"
) -> list[Ran]:
    environment = {"python": "3.12", "torch": torch}
    if (root / "b" / "run.json").is_file():
        store = open_run(root / "b", environment=environment)
    else:
        store = new_run(root, command=["x"], environment=environment, run_id="b")
    with store:
        return list(carry_out(STAGES, store, checkpoint, commands))


def test_every_stage_runs_once_in_order(tmp_path: Path) -> None:
    commands = Commands()
    ran = _bring_up(tmp_path, commands)
    assert commands.ran == ["parity", "checkpoint", "tokens", "generate"]
    assert all(one.is_green and one.outcome for one in ran)
    assert (tmp_path / "b" / "02-tiny.log").read_text().count("said") == 2


def test_the_first_red_stops_with_its_log_and_its_replay(tmp_path: Path) -> None:
    commands = Commands(tokens=1)
    ran = _bring_up(tmp_path, commands)
    assert [one.is_green for one in ran] == [True, False]
    outcome = ran[1].outcome
    assert outcome is not None
    assert (outcome.status, outcome.exit_code) == ("MISMATCH", 1)
    assert outcome.message.startswith("neuron-harness tokens --cp 2\n")
    assert outcome.replays == (_RED,)
    assert Path(outcome.log).read_text().endswith(f"{_RED}\n")


def test_a_resumed_bring_up_skips_green_and_repeats_red(tmp_path: Path) -> None:
    _bring_up(tmp_path, Commands(tokens=5))
    commands = Commands()
    ran = _bring_up(tmp_path, commands)
    assert commands.ran == ["checkpoint", "tokens", "generate"]
    assert ran[0].outcome is None
    assert all(one.is_green for one in ran)


@pytest.mark.parametrize("changed", [{"checkpoint": "other"}, {"torch": "2.14"}])
def test_another_checkpoint_or_version_makes_nothing_green(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    _bring_up(tmp_path, Commands())
    commands = Commands()
    _bring_up(tmp_path, commands, **changed)
    assert len(commands.ran) == 4


def test_until_names_the_last_stage() -> None:
    assert [stage.name for stage in until(STAGES, "tiny")] == ["one-op", "tiny"]
    assert until(STAGES, "") == STAGES
    with pytest.raises(UsageError, match="no such stage"):
        until(STAGES, "tinny")


def test_a_command_s_output_and_exit_code_come_through(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert run_logged(("generate", "--checkpoint", str(tmp_path / "none")), log) == 2
    text = log.read_text()
    assert text.startswith("$ neuron-harness generate --checkpoint")
    assert "error:" in text
