"""A sweep over a local Ray cluster of two nodes: same ledger, same points."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.ray_cluster import NEURON_CORES
from harness.cli.ray_executor import demand_of
from harness.cli.ray_parity import case_groups, parity_demand
from harness.core.case import Case
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode
from tests.harness.cli.command_line import run

CHECKPOINT = Path(__file__).parents[2] / "data" / "oracle" / "steady_mtp"
MATRIX = """
input_lens = [4, 9, 200]
output_len = 3
numerics = ["exact", "fast"]
num_repeats = 2

[engine]
num_threads = 1
"""


def records(out: Path, kind: str = "sweep") -> dict[str, dict[str, Any]]:
    (ledger,) = out.glob(f"*/{kind}.jsonl")
    payloads = [json.loads(line)["payload"] for line in ledger.read_text().splitlines()]
    return {payload.get("key") or payload["case_id"]: payload for payload in payloads}


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
    assert demand_of(EngineSettings("x", cp=1, ep=4)) == {"num_cpus": 4}
    assert parity_demand("interpret") == {"num_cpus": 1}
    assert parity_demand("device") == {"num_cpus": 1, "resources": {NEURON_CORES: 1}}


def test_a_task_has_cases_of_one_op_and_no_more_than_a_few() -> None:
    cases = [
        Case(op, {"T": n}) for op, count in (("rms_norm", 5), ("rope", 2)) for n in range(count)
    ]
    groups = case_groups(cases, size=3)
    assert [[(case.op, case.axes["T"]) for case in group] for group in groups] == [
        [("rms_norm", 0), ("rms_norm", 1), ("rms_norm", 2)],
        [("rms_norm", 3), ("rms_norm", 4)],
        [("rope", 0), ("rope", 1)],
    ]


def test_an_unknown_executor_is_the_users_error(matrix: Path, tmp_path: Path) -> None:
    options = ("--spec", matrix, "--checkpoint", CHECKPOINT, "--out", tmp_path / "runs")
    assert run("sweep", *options, "--executor", "slurm") == ExitCode.USAGE
    assert run("sweep", *options, "--executor", "ray", "--online") == ExitCode.USAGE
    assert run("parity", "--executor", "slurm", "--out", tmp_path / "p") == ExitCode.USAGE
    on_ray = ("parity", "--executor", "ray", "--out", tmp_path / "p")
    assert run(*on_ray, "--mutation", "auto") == ExitCode.USAGE
    assert run(*on_ray, "--casts") == ExitCode.USAGE


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
    for place in ("ray", "local"):
        (directory,) = (tmp_path / place).iterdir()
        assert run("report", directory, "--out", tmp_path / f"{place}-report") == ExitCode.PASS
    headings = [
        [
            line
            for line in (tmp_path / f"{place}-report" / "report.md").read_text().splitlines()
            if line.startswith("#") and "report" not in line
        ]
        for place in ("ray", "local")
    ]
    assert headings[0] == headings[1]
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


KNOWN = ("op", "backend", "status", "message", "errors", "nulls", "counters")


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_parity_cases_run_on_two_nodes_and_every_verdict_is_that_of_a_local_run(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("parity", "--op", "rms_norm", "--op", "swiglu", "--op", "vocab_argmax", "--smoke")
    on_ray = ("--executor", "ray", "--ray-address", address)
    assert run(*chosen, *on_ray, "--out", tmp_path / "ray") == ExitCode.PASS
    output = capsys.readouterr().out
    nodes = {line.split()[1] for line in output.splitlines() if line.strip().startswith("node ")}
    assert len(nodes) == 2
    assert run(*chosen, "--out", tmp_path / "local") == ExitCode.PASS
    spread, local = records(tmp_path / "ray", "parity"), records(tmp_path / "local", "parity")
    assert spread.keys() == local.keys()
    for case_id, result in spread.items():
        assert {name: result[name] for name in KNOWN} == {
            name: local[case_id][name] for name in KNOWN
        }


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_a_wrong_kernel_is_red_on_a_cluster_and_leaves_its_bundle(
    tmp_path: Path, address: str
) -> None:
    kernels = "tests.harness.cli.off_kernels:OFF"
    chosen = ("parity", "--op", "rms_norm", "--smoke", "--kernels", kernels)
    on_ray = ("--executor", "ray", "--ray-address", address)
    assert run(*chosen, *on_ray, "--out", tmp_path / "ray") == ExitCode.MISMATCH
    red = [one for one in records(tmp_path / "ray", "parity").values() if one["status"] != "PASS"]
    assert red
    assert all(Path(one["bundle"]).is_dir() for one in red if one["bundle"])
    assert any(one["bundle"] for one in red)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_a_backend_that_no_node_has_cannot_be_judged(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on_ray = ("--executor", "ray", "--ray-address", address, "--out", tmp_path / "ray")
    asked = ("parity", "--op", "rms_norm", "--smoke", "--backend", "device", *on_ray)
    assert run(*asked) == ExitCode.USAGE
    assert "no node of the cluster has 1 CPU, 1 neuron_cores" in capsys.readouterr().err
