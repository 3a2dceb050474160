"""A command that cannot be carried out says so at once and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.session import recording
from harness.core.errors import ExitCode, MissingEvidenceError, UsageError
from tests.harness.cli.conftest import Command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--time-limit-s", "nan"), "--time-limit-s nan: a time limit is positive and finite"),
        (("--time-limit-s", "inf"), "--time-limit-s inf"),
        (("--time-limit-s", "0"), "--time-limit-s 0.0"),
        (("--repeat", "0"), "--repeat 0: it is at least 1"),
        (("--mutation", "auto", "--count", "0"), "--count 0: it is at least 1"),
        (("--clean-runs", "-1"), "--clean-runs -1: it is at least 0"),
        (("--jobs", "-1"), "--jobs -1: it is at least 0"),
        (("--backend", "gpu"), "'gpu' is not known"),
        (("--lnc", "3"), "--lnc 3"),
        (("--kernels", "no_such_package.table:TABLE"), "--kernels 'no_such_package.table:TABLE'"),
        (("--kernels", "kernels.op_table:NO_TABLE"), "NO_TABLE"),
        (("--kernels", "kernels"), "must read 'package.module:object'"),
        (("--junit", "/proc/none/x.xml"), "--junit /proc/none/x.xml: cannot be written"),
    ],
)
def test_parity_refuses_and_leaves_no_run(
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    out = tmp_path / "runs"
    assert command("parity", "--op", "rms_norm", "--out", out, *arguments) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [UsageError("wrong"), MissingEvidenceError("no SDK")])
def test_a_run_that_recorded_nothing_is_discarded(tmp_path: Path, error: Exception) -> None:
    root = tmp_path / "kept"
    root.mkdir()

    def refused() -> None:
        with recording(root, None) as store:
            store.plan("parity", ["a"])
            raise error

    with pytest.raises(type(error)):
        refused()
    assert list(root.iterdir()) == []


def test_a_run_that_recorded_something_is_kept(tmp_path: Path) -> None:
    def refused_later() -> None:
        with recording(tmp_path, None) as store:
            store.append("parity", "a", {"status": "PASS"})
            raise UsageError("later")

    with pytest.raises(UsageError):
        refused_later()
    (run,) = tmp_path.iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["parity.jsonl", "run.json"]
