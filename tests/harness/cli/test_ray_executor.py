"""A sweep over a local Ray cluster of two nodes: same ledger, same points."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.cli.ray_executor import NEURON_CORES, demand_of
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode

CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "steady_mtp"
MATRIX = """
input_lens = [4, 9, 200]
output_len = 3
numerics = ["exact", "fast"]
num_repeats = 2

[engine]
num_threads = 1
"""


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def records(out: Path) -> dict[str, dict[str, Any]]:
    (ledger,) = out.glob("*/sweep.jsonl")
    payloads = [json.loads(line)["payload"] for line in ledger.read_text().splitlines()]
    return {payload["key"]: payload for payload in payloads}


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    spec = tmp_path / "matrix.toml"
    spec.write_text(MATRIX)
    return spec


@pytest.fixture
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def test_ranks_occupy_cores_of_their_kind() -> None:
    assert demand_of(EngineSettings("x", cp=4)) == {"num_cpus": 4}
    on_device = demand_of(EngineSettings("x", cp=64, device="neuron"))
    assert on_device == {"num_cpus": 1, "resources": {NEURON_CORES: 64}}


def test_an_unknown_executor_is_the_users_error(matrix: Path, tmp_path: Path) -> None:
    options = ("--spec", matrix, "--checkpoint", CHECKPOINT, "--out", tmp_path / "runs")
    assert run("sweep", *options, "--executor", "slurm") == ExitCode.USAGE
    assert run("sweep", *options, "--executor", "ray", "--online") == ExitCode.USAGE


@pytest.mark.ray
@pytest.mark.filterwarnings("default")  # ray's own start-up warns about its future defaults
def test_settings_run_on_two_nodes_and_the_ledger_is_that_of_a_local_run(
    matrix: Path, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("sweep", "--spec", matrix, "--checkpoint", CHECKPOINT.resolve())
    on_ray = ("--executor", "ray", "--ray-address", address)
    assert run(*options, *on_ray, "--out", tmp_path / "ray") == ExitCode.PASS
    output = capsys.readouterr().out
    nodes = {line.split()[1] for line in output.splitlines() if line.strip().startswith("node ")}
    assert len(nodes) == 2
    assert run(*options, "--out", tmp_path / "local") == ExitCode.PASS
    spread, local = records(tmp_path / "ray"), records(tmp_path / "local")
    assert spread.keys() == local.keys()
    for key, point in spread.items():
        assert point["config"] == local[key]["config"]
        assert point["status"] == local[key]["status"]
        assert point["counters"] == local[key]["counters"]
        assert len(point["requests"]) == len(local[key]["requests"])
    assert sorted(point["status"] for point in spread.values()) == ["OK"] * 4 + ["PRUNED"] * 2
    (directory,) = (tmp_path / "ray").iterdir()
    assert run(*options, *on_ray, "--run", directory) == ExitCode.PASS
    assert "4 of 6 points are already measured" in capsys.readouterr().out


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_a_setting_no_node_can_hold_is_refused(
    matrix: Path, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--spec", matrix, "--checkpoint", CHECKPOINT, "--cp", "2", "--out", tmp_path / "r")
    on_ray = ("--executor", "ray", "--ray-address", address)
    assert run("sweep", *options, *on_ray) == ExitCode.USAGE
    assert "no node of the cluster has 2 CPU" in capsys.readouterr().err
