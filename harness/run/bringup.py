"""Bring-up by stages: from one op to the real checkpoint, each on what the one before has shown.

A stage is a list of command lines. Its record says under which key it was green: the commands, the
checkpoint and every version. A later run skips what is green under the same key, and stops at the
first red, with its log and the bundles that replay it.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import ExitCode, UsageError
from harness.core.record import strict_json
from harness.core.suggest import near_names
from harness.run.store import RunStore

__all__ = ["Ran", "Runner", "Stage", "StageOutcome", "carry_out", "run_logged", "until"]

_TAIL_LINES = 15
_REPLAY = re.compile(r"neuron-harness parity --replay \S+(?: --backend \S+)?")
# What must be the same for an earlier green to count.
_VERSIONS = ("python", "torch", "git", "sdk", "origin")

# Runs one command line: its arguments and where its output goes; returns the exit code.
Runner = Callable[[Sequence[str], Path], int]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the bring-up.

    Attributes:
        name: what users type after --until.
        purpose: one line for people.
        commands: arguments of `neuron-harness`, in order.
    """

    name: str
    purpose: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The payload of a stage's record.

    Attributes:
        status: name of the exit code.
        elapsed_s: of all its commands.
        message: of a red stage: the command that failed and the end of its log.
        green_key: under which it counts; "" unless it passed.
        log: file with the output of all its commands.
        replays: command lines that judge the failing cases again.
    """

    name: str
    status: str
    exit_code: int
    elapsed_s: float
    message: str = ""
    green_key: str = ""
    log: str = ""
    replays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a stage.

    Attributes:
        outcome: None where an earlier green stands.
    """

    stage: Stage
    outcome: StageOutcome | None

    @property
    def is_green(self) -> bool:
        """Now or before."""
        return self.outcome is None or self.outcome.exit_code == ExitCode.PASS


def until(stages: Sequence[Stage], name: str) -> tuple[Stage, ...]:
    """The stages up to and including one; all without a name.

    Raises:
        UsageError: no stage of that name.
    """
    if not name:
        return tuple(stages)
    known = [stage.name for stage in stages]
    if name not in known:
        raise UsageError(f"--until {name!r}: no such stage{near_names(name, known)}")
    return tuple(stages[: known.index(name) + 1])


def carry_out(
    stages: Sequence[Stage], store: RunStore, checkpoint_id: str, runner: Runner
) -> Iterator[Ran]:
    """Run stages in order, recording each; ends after the first red.

    Args:
        store: of this bring-up, new or resumed.
        checkpoint_id: fingerprint of the checkpoint's content.
        runner: usually `run_logged`.
    """
    green = {
        record.payload.get("green_key")
        for record in store.read("stage").records
        if record.payload.get("green_key")
    }
    for number, stage in enumerate(stages, start=1):
        key = _green_key(stage, checkpoint_id, store.environment)
        if key in green:
            yield Ran(stage, None)
            continue
        log = store.directory / f"{number:02d}-{stage.name}.log"
        outcome = _run_stage(stage, key, log, runner)
        store.append("stage", stage.name, outcome)
        yield Ran(stage, outcome)
        if outcome.exit_code != ExitCode.PASS:
            return


def run_logged(arguments: Sequence[str], log: Path) -> int:
    """`neuron-harness <arguments>` in a process of its own, output appended to `log`.

    A process that a signal ended counts as a dead rank.
    """
    code = "from harness.cli.main import main; main()"
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ {shlex.join(['neuron-harness', *arguments])}\n")
        out.flush()
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode if done.returncode >= 0 else int(ExitCode.RANK)


def _run_stage(stage: Stage, key: str, log: Path, runner: Runner) -> StageOutcome:
    log.unlink(missing_ok=True)
    start = time.perf_counter()
    code, failed = int(ExitCode.PASS), ""
    for arguments in stage.commands:
        code = runner(arguments, log)
        if code != ExitCode.PASS:
            failed = shlex.join(["neuron-harness", *arguments])
            break
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    tail = "\n".join(text.splitlines()[-_TAIL_LINES:])
    return StageOutcome(
        name=stage.name,
        status=_name_of(code),
        exit_code=code,
        elapsed_s=time.perf_counter() - start,
        message=f"{failed}\n{tail}" if failed else "",
        green_key="" if failed else key,
        log=str(log),
        replays=tuple(dict.fromkeys(_REPLAY.findall(text))) if failed else (),
    )


def _name_of(code: int) -> str:
    known = {int(item): item.name for item in ExitCode}
    return known.get(code, ExitCode.INTERNAL.name)


def _green_key(stage: Stage, checkpoint_id: str, environment: Mapping[str, Any]) -> str:
    versions = {name: environment.get(name) for name in _VERSIONS}
    body = {"commands": stage.commands, "checkpoint": checkpoint_id, "versions": versions}
    return hashlib.sha256(strict_json(body).encode()).hexdigest()[:16]
