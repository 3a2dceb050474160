"""A suite's cases are tests: one a case id, red unless PASS."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.harness.cli.test_parity import SUITE

CHECKOUT = Path(__file__).resolve().parents[3]
OFF = "tests.harness.cli.off_kernels:OFF"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    return path


def _pytest(*arguments: object) -> subprocess.CompletedProcess[str]:
    plugin = ("-p", "harness.cli.pytest_plugin", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugin, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, timeout=300)


def test_every_case_id_is_a_test_and_nothing_else_is_collected(suite: Path, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    done = _pytest("--parity", suite, "-v", f"--junitxml={junit}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "rms_norm/T2-d64/bfloat16/s0 PASSED" in done.stdout
    cases = list(ET.parse(junit).getroot().iter("testcase"))
    assert [case.get("name") for case in cases] == [
        "rms_norm/T2-d64/bfloat16/s0",
        "rms_norm/T5-d64/bfloat16/s0",
    ]
    properties = {p.get("name"): p.get("value") for p in cases[0].iter("property")}
    assert properties["status"] == "PASS"
    assert 0 < float(properties["budget_ratio.y"] or 0) <= 1


def test_a_wrong_kernel_fails_with_status_and_place(suite: Path) -> None:
    done = _pytest("--parity", suite, "--parity-kernels", OFF)
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    assert "OUT_OF_TOLERANCE  rms_norm/T5-d64/bfloat16/s0" in done.stdout
    assert "times its budget in slice" in done.stdout


@pytest.mark.slow
def test_an_op_without_a_kernel_fails(suite: Path) -> None:
    kernels = "tests.harness.cli.off_kernels:EMPTY"
    done = _pytest("--parity", suite, "--parity-kernels", kernels)
    assert done.returncode == 1
    assert "UNSUPPORTED" in done.stdout


@pytest.mark.slow
def test_one_case_is_selected_by_its_id(suite: Path) -> None:
    done = _pytest("--parity", suite, "-k", "T5-d64")
    assert "1 passed, 1 deselected" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [('op = "rms_nrom"', "unknown op"), ("[[", "small.toml")],
)
def test_a_wrong_suite_is_a_collection_error(suite: Path, change: str, message: str) -> None:
    suite.write_text(SUITE.replace('op = "rms_norm"', change))
    done = _pytest("--parity", suite)
    assert done.returncode == 2
    assert message in done.stdout


def test_a_missing_file_is_a_usage_error() -> None:
    done = _pytest("--parity", "none.toml")
    assert done.returncode == 4
    assert "--parity none.toml: there is no such file" in done.stderr
