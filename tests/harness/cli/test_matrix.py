"""One matrix file with every axis: what is planned, what is pruned, and both ways of running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import ExitCode
from tests.harness.cli.command_line import run

CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "steady_mtp"
# input x output x concurrency x cp x ep x backend x buckets x request rate
AXES = """
input_lens = [4, 200]
output_len = [3, 4]
concurrency = [1, 2]
cps = [1, 2]
eps = [0, 2, 3]
numerics = ["exact"]
ops = [
    ["references.op_table:TABLE"],
    ["references.op_table:TABLE", "tests.harness.cli.same_ops:TABLE"],
]
bucket_sets = [[64], [32, 64]]
request_rates = [0.0, 50.0]
num_warmups = 2
num_repeats = 1

[engine]
num_threads = 1
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    spec = tmp_path / "matrix.toml"
    spec.write_text(AXES)
    return spec


def cells_of(
    matrix: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> list[dict[str, Any]]:
    code = run("plan", "--spec", matrix, "--checkpoint", CHECKPOINT, "--json", *options)
    assert code == ExitCode.PASS
    cells: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["cells"]
    return cells


def payloads(out: Path, kind: str = "sweep") -> list[dict[str, Any]]:
    (ledger,) = out.glob(f"*/{kind}.jsonl")
    return [json.loads(line)["payload"] for line in ledger.read_text().splitlines()]


def test_the_plan_crosses_every_axis_and_says_why_a_cell_will_not_run(
    matrix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = cells_of(matrix, capsys, "--online")
    shapes = 2 * 2 * 2 * 2  # input, output, concurrency, rate
    # ep=2 with cp=2 is what ep=0 means there, and stands once.
    settings = [(1, 0), (2, 0), (1, 2), (1, 3), (2, 3)]
    assert len(cells) == len(settings) * 2 * 2 * shapes
    assert len({cell["key"] for cell in cells}) == len(cells)
    reasons = {cell["pruned"] for cell in cells if cell["input_len"] == 4}
    assert "" in reasons
    assert any("ep=3 with cp=2" in reason for reason in reasons)
    long = {cell["pruned"] for cell in cells if cell["input_len"] == 200}
    assert all("max_model_len 128" in reason for reason in long)
    offline = cells_of(matrix, capsys)
    with_rate = [cell for cell in offline if cell["request_rate"] != "closed"]
    assert len(with_rate) == len(cells) // 2
    assert all(cell["pruned"] for cell in with_rate)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_file_runs_offline_and_online_and_every_point_has_metrics_of_its_own(
    matrix: Path, tmp_path: Path
) -> None:
    # One set of buckets and no ep that needs three ranks: six engines each way.
    text = matrix.read_text().replace("[[64], [32, 64]]", "[[32, 64]]")
    matrix.write_text(text.replace("[0, 2, 3]", "[0, 2]"))
    found = {}
    for way in ((), ("--online",)):
        out = tmp_path / f"runs{len(found)}"
        spec = ("sweep", "--spec", matrix, "--checkpoint", CHECKPOINT, "--out", out)
        assert run(*spec, *way) == ExitCode.PASS
        points = payloads(out)
        measured = [point for point in points if point["status"] == "OK"]
        assert {point["status"] for point in points} == {"OK", "PRUNED"}
        names = [metric["name"] for metric in payloads(out, "metric")]
        ttft = [name for name in names if name.endswith(".ttft_ms")]
        assert len(ttft) == len(set(ttft)) == len(measured)
        found[way] = measured
    offline, online = found[()], found[("--online",)]
    assert {point["config"].get("mode") for point in offline} == {None}
    assert {point["config"]["mode"] for point in online} == {"online"}
    assert len(online) == 2 * len(offline)  # rates need a server
    assert {point["config"].get("request_rate", 0.0) for point in online} == {0.0, 50.0}
    for point in (*offline, *online):
        assert all(request["bucket"] is not None for request in point["requests"])
        assert "collectives" in point["requests"][0]["counters"]
    for point in offline:
        is_alone = (point["config"]["cp"], point["config"]["ep"]) == (1, 0)
        assert (point["counters"]["collectives"] == 0) == is_alone
