"""Runs a command so that nothing which came of it outlives whoever asked for it.

torchrun starts its ranks in sessions of their own, so neither a signal to a group nor a test's
`finally` reaches them when the test is killed. A keeper stands between: the kernel hands every
orphan below it to it, and it ends all of them when the pipe from the test ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LEFT_BEHIND", "kept"]

LEFT_BEHIND = 99
"""Exit code where the command ended and processes of it did not."""

_ENDED_EARLY = 137
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 2.0
_PAUSE_S = 0.02


@contextmanager
def kept(
    command: Sequence[str], *, environment: Mapping[str, str], directory: str
) -> Iterator[subprocess.Popen[str]]:
    """The command below a keeper; its output as text, its exit code or LEFT_BEHIND.

    Leaving the context ends whatever still runs.
    """
    theirs, ours = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, __file__, str(theirs), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment),
            cwd=directory,
            pass_fds=[theirs],
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                os.close(ours)
    finally:
        os.close(theirs)


def main(lifeline: int, command: Sequence[str]) -> int:
    """The keeper: its exit code is the command's."""
    os.set_inheritable(lifeline, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    ended = os.pidfd_open(child.pid)
    ready, _, _ = select.select([lifeline, ended], [], [])
    if ended not in ready:
        _end_all()
        return _ENDED_EARLY
    code = child.wait()
    deadline = time.monotonic() + _GRACE_S
    while _reaped() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    left = list(_descendants(os.getpid()))
    if not left:
        return code if code >= 0 else 128 - code
    told = "\n".join(f"  {pid}: {_command_of(pid)}" for pid in left)
    print(f"left behind by {command[0]}:\n{told}", file=sys.stderr, flush=True)
    _end_all()
    return LEFT_BEHIND


def _end_all() -> None:
    """Kill until nobody is left: a process may start another before it dies."""
    while _reaped():
        for pid in _descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself
        time.sleep(_PAUSE_S)


def _reaped() -> bool:
    """Take leave of the dead; whether anybody is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # it ended meanwhile
        for child in map(int, children):
            yield from _descendants(child)
            yield child


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "(ended meanwhile)"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
