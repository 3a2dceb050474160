"""The engine on a device named neuron, shown on the stand-in (tests.fakes_neuron)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.device.neuron import open_device, require_device
from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.numerics import EXACT, FAST
from tests.fakes_neuron.running import run_command, run_python
from tiny_checkpoints.generator import generate

_OPTIONS = ("--ids", "1,2,3,4,5", "--max_tokens", "3", "--json")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("tiny-A", tmp_path_factory.mktemp("device") / "tiny-A")


def test_without_torch_neuronx_one_line_says_what_is_missing() -> None:
    with pytest.raises(MissingEvidenceError, match="no PrivateUse1 device of that name") as found:
        require_device("neuron", 1, FAST)
    assert "\n" not in str(found.value)
    assert found.value.exit_code == 3


def test_a_simulator_switched_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_SIMULATOR", "1")
    with pytest.raises(UsageError, match="NKI_SIMULATOR"):
        require_device("neuron", 1, FAST)


def test_sums_in_fp64_are_refused_on_a_device() -> None:
    with pytest.raises(UsageError, match="fp64"):
        require_device("neuron", 1, EXACT)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UsageError, match="choose cpu or neuron"):
        require_device("gpu", 1, FAST)


def test_the_cpu_counts_no_fallbacks() -> None:
    device = open_device("cpu", 3)
    device.start_step()
    assert dict(device.finish_step()) == {}
    assert device.torch_device.type == "cpu"


@pytest.mark.parametrize("ops", ["references", "kernels"])
def test_the_device_gives_the_cpu_tokens(checkpoint: Path, ops: str) -> None:
    asked = ("generate", "--model_name", checkpoint, *_OPTIONS, "--ops", ops)
    on_cpu = run_command(*asked, NEURON_HARNESS_BACKEND="interpret")
    on_device = run_command(*asked, "--device", "neuron")
    assert on_device.returncode == 0, on_device.stderr
    cpu, device = json.loads(on_cpu.stdout), json.loads(on_device.stdout)
    assert device["token_ids"] == cpu["token_ids"]
    assert device["counters"]["fallbacks"] == 0
    assert "fallbacks" not in cpu["counters"]


def test_fallbacks_are_named_counted_and_fail_unless_allowed(checkpoint: Path) -> None:
    asked = ("generate", "--model_name", checkpoint, *_OPTIONS, "--device", "neuron")
    asked = (*asked, "--ops", "references")
    refused = run_command(*asked, FAKE_NEURON_FALLBACKS="aten::sort")
    assert refused.returncode == 1
    assert "aten::sort (" in refused.stderr
    calls = json.loads(refused.stdout)["counters"]["fallback aten::sort"]
    assert calls == json.loads(refused.stdout)["counters"]["fallbacks"] > 0
    allowed = run_command(
        *asked, "--allow-fallback", "aten::sort", FAKE_NEURON_FALLBACKS="aten::sort"
    )
    assert allowed.returncode == 0


def test_a_kernel_degree_other_than_the_runtimes_is_refused(checkpoint: Path) -> None:
    done = run_command(
        "generate", "--model_name", checkpoint, *_OPTIONS, "--device", "neuron",
        NEURON_LOGICAL_NC_CONFIG="1", FAKE_NEURON_RUNTIME_LNC="2",
    )  # fmt: skip
    assert done.returncode == 2
    assert "specialised for LNC 1" in done.stderr


def test_more_ranks_than_cores_are_refused_before_weights_are_read(checkpoint: Path) -> None:
    done = run_command(
        "generate", "--model_name", checkpoint, *_OPTIONS, "--device", "neuron", "--cp", "2",
        FAKE_NEURON_DEVICES="1",
    )  # fmt: skip
    assert done.returncode == 3
    assert "2 ranks need as many logical NeuronCores, 1 are visible" in done.stderr


def test_tensors_of_two_devices_never_meet_in_the_stand_in() -> None:
    """Otherwise its silence about the engine would say nothing."""
    run_python(
        "import torch\n"
        "a = torch.ones(2, device='neuron')\n"
        "try:\n    a + torch.ones(2)\n"
        "except RuntimeError as error:\n    assert 'one device' in str(error)\n"
        "else:\n    raise SystemExit('mixed devices went through')\n"
        "assert (a + a).cpu().tolist() == [2.0, 2.0] and (a + a).device.type == 'neuron'\n"
    )


@pytest.mark.slow
def test_the_two_command_lines_of_the_port_run_on_two_device_ranks(
    checkpoint: Path, tmp_path: Path
) -> None:
    layout = (
        "--model_name", checkpoint, "--ep", "2", "--cp", "2", "--max_model_len", "264",
        "--num_kv_blocks", "20", "--device", "neuron",
    )  # fmt: skip
    offline = run_command(
        "generate", *layout, "--max_num_batched_tokens", "8", "--max_tokens", "3", "--ids", "1,2"
    )
    assert offline.returncode == 0, offline.stderr
    bench = run_command(
        "bench_neuron", *layout, "--input_len", "4", "--output_len", "2", "--out", tmp_path,
        "--ops", "references",
    )  # fmt: skip
    assert bench.returncode == 0, bench.stderr
    (ledger,) = tmp_path.glob("*/sweep.jsonl")
    record = json.loads(ledger.read_text().splitlines()[-1])
    assert record["payload"]["status"] == "OK"
    assert record["environment"]["origin"] == "device"
    assert record["payload"]["config"]["device"] == "neuron"
