"""A failing case can be judged again from what it left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.core.errors import InputError, UsageError
from harness.core.op_table import OpTable
from harness.core.status import OpStatus
from harness.run.bundle import read_bundle
from harness.run.inputs import build_inputs
from harness.run.judge import Judge
from references.op_table import TABLE
from tests.harness.run.budgets import TOLERANCES
from tests.harness.run.problems import AXES, small_case


def _wrong_everywhere(op: str) -> OpTable:
    def wrong(*arguments: object, numerics: object) -> object:
        right = TABLE.ops[op](*arguments, numerics=numerics)
        outputs = right if isinstance(right, tuple) else (right,)
        return tuple(~o if o.dtype is torch.bool else o + 1 for o in outputs)

    return OpTable({op: wrong})


@pytest.mark.parametrize("layout", ["contiguous", "offset", "expanded"])
@pytest.mark.parametrize("op", AXES)
def test_the_stored_inputs_are_the_ones_that_failed(tmp_path: Path, op: str, layout: str) -> None:
    case = small_case(op, layout=layout, seed=9)
    judge = Judge(TABLE, _wrong_everywhere(op), TOLERANCES, "fake", bundle_root=tmp_path)
    first = judge.run(case)
    assert first.status not in (OpStatus.PASS, OpStatus.SKIPPED, OpStatus.VACUOUS), first.message
    (directory,) = tmp_path.iterdir()
    assert first.bundle == str(directory)
    bundle = read_bundle(directory)
    assert bundle.case == case
    original = dict(build_inputs(case).tensors())
    for name, tensor in bundle.arguments.tensors():
        assert torch.equal(tensor, original[name])
        assert tensor.stride() == original[name].stride()
    again = Judge(TABLE, _wrong_everywhere(op), {op: bundle.tolerances}, "fake")
    assert again.run(bundle.case, bundle.arguments).errors == first.errors


def test_a_bundle_holds_golden_baseline_candidate_and_the_command(tmp_path: Path) -> None:
    judge = Judge(TABLE, _wrong_everywhere("rms_norm"), TOLERANCES, "fake", bundle_root=tmp_path)
    judge.run(small_case("rms_norm"))
    (directory,) = tmp_path.iterdir()
    tensors = load_file(directory / "tensors.safetensors")
    assert set(tensors) == {"input.x", "input.weight", "golden.y", "baseline.y", "candidate.y"}
    assert tensors["golden.y"].dtype is torch.float64
    text = (directory / "case.json").read_text()
    assert f"neuron-harness parity --replay {directory} --backend fake" in text


def test_a_passing_case_leaves_nothing(tmp_path: Path) -> None:
    Judge(TABLE, TABLE, TOLERANCES, "fake", bundle_root=tmp_path).run(small_case("rms_norm"))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a failing case has left"):
        read_bundle(tmp_path)
    (tmp_path / "case.json").write_text("{}")
    with pytest.raises(InputError, match="not a bundle"):
        read_bundle(tmp_path)


def test_a_bundle_without_its_tensors_is_refused(tmp_path: Path) -> None:
    judge = Judge(TABLE, _wrong_everywhere("rms_norm"), TOLERANCES, "fake", bundle_root=tmp_path)
    judge.run(small_case("rms_norm"))
    (directory,) = tmp_path.iterdir()
    (directory / "tensors.safetensors").write_bytes(b"cut")
    with pytest.raises(InputError, match="restore the bundle's tensors"):
        read_bundle(directory)


def test_a_bundle_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = tmp_path / "file"
    judge = Judge(TABLE, _wrong_everywhere("rms_norm"), TOLERANCES, "fake", bundle_root=root)
    with pytest.raises(UsageError, match="cannot be written"):
        judge.run(small_case("rms_norm"))
