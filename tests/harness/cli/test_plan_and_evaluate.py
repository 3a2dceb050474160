"""`neuron-harness plan` and `evaluate` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import ExitCode
from tests.harness.cli.command_line import run

CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "steady_mtp"
MATRIX = """
input_lens = [4, 60, 200]
output_len = [3, 5]
cps = [1, 2]
num_repeats = 2
request_rates = [0.0, 4.0]
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    spec = tmp_path / "matrix.toml"
    spec.write_text(MATRIX)
    return spec


def planned(capsys: pytest.CaptureFixture[str], *options: object) -> list[dict[str, Any]]:
    assert run("plan", "--checkpoint", CHECKPOINT, "--json", *options) == ExitCode.PASS
    cells: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["cells"]
    return cells


def test_a_plan_shows_every_cell_and_why_some_will_not_run(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = planned(capsys, "--spec", matrix, "--online")
    assert len(cells) == 3 * 2 * 2 * 2
    assert len({cell["key"] for cell in cells}) == len(cells)
    pruned = [cell for cell in cells if cell["pruned"]]
    assert {cell["input_len"] for cell in pruned} == {200}
    assert "over max_model_len 128" in pruned[0]["pruned"]
    offline = planned(capsys, "--spec", matrix)
    with_rate = [cell for cell in offline if cell["request_rate"] == 4.0]
    assert all(cell["pruned"] for cell in with_rate)
    assert "sweep --online" in with_rate[0]["pruned"]


def test_estimates_scale_what_was_measured(
    matrix: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = planned(capsys, "--spec", matrix)
    assert {cell["estimated_s"] for cell in before} == {None}
    spec = tmp_path / "small.toml"
    spec.write_text("input_lens = [4]\noutput_len = 3\nnum_repeats = 2\n")
    assert run("sweep", "--spec", spec, "--checkpoint", CHECKPOINT) == ExitCode.PASS
    capsys.readouterr()
    after = planned(capsys, "--spec", matrix, "--online")
    known = {
        (cell["input_len"], cell["output_len"], cell["request_rate"]): cell["estimated_s"]
        for cell in after
        if cell["setting"].startswith("fast cp=1") and not cell["pruned"]
    }
    (ledger,) = (tmp_path / "runs").glob("*/sweep.jsonl")
    point = json.loads(ledger.read_text().splitlines()[-1])["payload"]
    ttft_s, tpot_s = (
        sum(values) / 2 / 1e9
        for values in zip(
            *(
                (r["token_ns"][0] - r["t_send_ns"], (r["token_ns"][-1] - r["token_ns"][0]) / 2)
                for r in point["requests"]
            ),
            strict=True,
        )
    )
    # Two repeats and a warm-up of one request each, one after the other.
    assert known[4, 3, "closed"] == pytest.approx(3 * (ttft_s + 2 * tpot_s))
    assert known[60, 5, "closed"] == pytest.approx(3 * (15 * ttft_s + 4 * tpot_s))
    assert known[4, 3, 4.0] >= 0.5


def test_evaluate_prints_scores_beside_a_stored_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "task.toml"
    task.write_text(
        "[[items]]\ncontext = [5, 6]\nchoices = [[7], [8]]\n\n"
        "[[items]]\ncontext = [9]\nchoices = [[7, 8], [8]]\nanswer = 1\n\n"
        '[[stored]]\nname = "good"\n[stored.scores]\naccuracy = 0.5\n\n'
        '[[stored]]\nname = "impossible"\n[stored.scores]\nlogprob_per_token = -99.0\n'
    )
    options = ("evaluate", "--checkpoint", CHECKPOINT, "--task", task)
    assert run(*options, "--json") == ExitCode.PASS
    facts = json.loads(capsys.readouterr().out)
    accuracy = facts["scores"]["accuracy"]
    assert accuracy["num_items"] == 2
    assert accuracy["interval"][0] < accuracy["value"] < accuracy["interval"][1] or (
        accuracy["value"] in (0.0, 1.0)
    )
    assert facts["stored"] is None
    assert run(*options, "--beside", "good") == ExitCode.PASS
    assert "stored: good" in capsys.readouterr().out.replace("\n", " ")
    assert run(*options, "--beside", "impossible") == ExitCode.MISMATCH
    assert run(*options, "--beside", "nobody") == ExitCode.USAGE
    assert "there is good, impossible" in capsys.readouterr().err
