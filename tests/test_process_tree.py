"""The keeper of test processes: nothing outlives a test, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.process_tree import LEFT_BEHIND, kept

_ROOT = str(Path(__file__).parents[1])
# A child in a session of its own, as torchrun starts them; it says its id and sleeps.
_PARENT = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    print(child.pid, flush=True)
    {then}
"""


def _command(then: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(_PARENT).replace("{then}", then)]


def _gone(pid: int, limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("code", [0, 5])
def test_output_and_exit_code_are_those_of_the_command(code: int) -> None:
    command = [sys.executable, "-c", f"import sys; print('said'); sys.exit({code})"]
    with kept(command, environment=os.environ, directory=_ROOT) as process:
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("said\n", "", code)


def test_what_a_command_leaves_behind_is_named_and_ended() -> None:
    with kept(_command(""), environment=os.environ, directory=_ROOT) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == LEFT_BEHIND
    assert f"{int(out)}: " in err
    assert "time.sleep(600)" in err
    assert _gone(int(out))


def test_leaving_the_context_ends_everything_below_it() -> None:
    with kept(_command("time.sleep(600)"), environment=os.environ, directory=_ROOT) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not _gone(pid, limit_s=0.1)
    assert process.returncode == 137
    assert _gone(pid)


def test_a_test_that_is_killed_leaves_nothing() -> None:
    command = _command("time.sleep(600)")
    test = f"""
        import os, time
        from tests.process_tree import kept
        with kept({command!r}, environment=os.environ, directory={_ROOT!r}) as one:
            print(one.pid, one.stdout.readline().strip(), flush=True)
            time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(test)], stdout=subprocess.PIPE, text=True, cwd=_ROOT
    ) as killed:
        assert killed.stdout is not None
        pids = [int(text) for text in killed.stdout.readline().split()]
        assert len(pids) == 2
        killed.kill()
    assert all(map(_gone, pids))
