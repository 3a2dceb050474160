"""scripts/smoke.sh in a repository of its own, with a harness that tells what it was asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FAKE_HARNESS = """#!/usr/bin/env bash
echo "$@" >> "$FAKE_LOG"
if [ "$1" = run ]; then
    [ -z "${FAKE_EMPTY:-}" ] || exit 0
    while [ "$1" != --baseline ]; do shift; done
    cat "$2/metric.jsonl" >> "$FAKE_LOG"
    mkdir -p "$4/run-1" && echo '{}' > "$4/run-1/run.json"
    exit "${FAKE_RUN_CODE:-0}"
fi
exit "${FAKE_REPORT_CODE:-0}"
"""


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    done = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """main has a baseline; the branch on top of it brings another one along."""
    root = tmp_path / "repository"
    for name in ("env.sh", "smoke.sh"):
        write(root / "scripts" / name, (SCRIPTS / name).read_text(encoding="utf-8"), 0o755)
    write(root / "scripts" / "setup.sh", "#!/bin/sh\nexit 0\n", 0o755)
    write(root / ".venv" / "bin" / "neuron-harness", FAKE_HARNESS, 0o755)
    write(root / ".gitignore", ".venv/\nruns/\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "no baseline yet")
    git(root, "tag", "before")
    write(root / "suites" / "baselines" / "tiny" / "metric.jsonl", "baseline of main\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "baseline")
    git(root, "checkout", "--quiet", "-b", "change")
    write(root / "suites" / "baselines" / "tiny" / "metric.jsonl", "brought along\n")
    git(root, "commit", "--quiet", "-am", "another baseline")
    return root


def smoke(repository: Path, ref: str, **environment: str) -> tuple[int, str, list[str]]:
    """Exit code, what was said to stderr, and what the harness was asked."""
    log = repository.parent / "log"
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }
    done = subprocess.run(
        ["scripts/smoke.sh", ref],
        cwd=repository,
        env={**inherited, "FAKE_LOG": str(log), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    asked = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return done.returncode, done.stderr, asked


def test_the_gate_gets_the_baseline_of_the_merge_base(repository: Path) -> None:
    code, _, asked = smoke(repository, "main")
    assert code == 0
    assert asked[0].startswith("run --preset tiny --baseline ")
    assert asked[1] == "baseline of main"
    assert asked[2].startswith("report runs/smoke-")
    assert asked[2].endswith("/run-1 --format md,html,junit,summary")


@pytest.mark.parametrize(
    ("run_code", "report_code", "expected"), [(1, 1, 1), (5, 1, 5), (0, 2, 2), (3, 0, 3)]
)
def test_the_exit_code_is_the_run_s_and_a_red_run_is_still_reported(
    repository: Path, run_code: int, report_code: int, expected: int
) -> None:
    codes = {"FAKE_RUN_CODE": str(run_code), "FAKE_REPORT_CODE": str(report_code)}
    code, _, asked = smoke(repository, "main", **codes)
    assert code == expected
    assert asked[-1].startswith("report ")


def test_a_run_without_records_is_never_green(repository: Path) -> None:
    code, said, _ = smoke(repository, "main", FAKE_EMPTY="1")
    assert code == 4
    assert "left no record" in said


def test_no_baseline_at_the_merge_base_cannot_be_judged(repository: Path) -> None:
    code, said, asked = smoke(repository, "before")
    assert code == 3
    assert "has no suites/baselines/tiny" in said
    assert asked == []


def test_an_unknown_ref_is_the_user_s_error(repository: Path) -> None:
    code, said, _ = smoke(repository, "origin/nowhere")
    assert code == 2
    assert "fetch origin/nowhere" in said
