"""The tier for devices: at most 60 compiles, which together run every path of the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.cli.kernel_mutation import HOOK
from harness.cli.main import main
from harness.core.case import Case
from harness.core.errors import InputError
from harness.core.ops import OP_SHEET
from harness.run.golden import kernel_numerics
from harness.run.inputs import build_inputs
from kernels.launch import backend_selected, lnc_selected
from kernels.op_table import TABLE
from suites.loader import load_op_suite

STEMS = sorted({spec.stem for spec in OP_SHEET.values()})
CASES = [case for stem in STEMS for case in load_op_suite(stem).cases_of("device")]
LARGEST = 20_000  # axes above it take minutes on the interpreter and add no path


def _places(cases: list[Case]) -> frozenset[str]:
    """What these cases execute on a device's two cores a launch."""

    def run() -> None:
        for case in cases:
            arguments = build_inputs(case, fp8_max=240)
            TABLE.ops[case.op](*arguments.positional(), numerics=kernel_numerics(case, 240))

    with backend_selected("interpret"), lnc_selected(2):
        return HOOK.places(run)


def test_it_has_at_most_60_shapes_and_every_op() -> None:
    assert len(CASES) == len({case.case_id for case in CASES}) <= 60
    assert {case.op for case in CASES} == set(OP_SHEET)


def test_attention_has_every_number_of_heads_a_rank_can_have() -> None:
    decode = {
        case.axes["H"] for case in CASES if case.op == "sparse_attention" and case.axes["T"] == 1
    }
    assert decode >= {64, 16, 8, 1}


@pytest.mark.slow
@pytest.mark.parametrize("op", OP_SHEET)
def test_it_runs_every_place_of_a_kernel_that_any_tier_runs(op: str) -> None:
    torch.set_num_threads(1)
    suite = load_op_suite(op)
    every = [
        case
        for case in suite.cases_of("full")
        if case.op == op and case.layout == "contiguous" and max(case.axes.values()) <= LARGEST
    ]
    chosen = [case for case in CASES if case.op == op and max(case.axes.values()) <= LARGEST]
    assert _places(every) <= _places(chosen)


def test_a_device_tier_names_cases_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        'op = "vocab_argmax"\ndevice = ["vocab_argmax/T9"]\n[[cases]]\naxes = {T=1,V=8}'
    )
    with pytest.raises(InputError, match="no such case"):
        load_op_suite(str(path))


def test_the_command_knows_only_one_and_two_cores(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["parity", "--op", "rms_norm", "--lnc", "3"])
    assert ended.value.code == 2
    assert "--lnc 3: choose 1 or 2" in capsys.readouterr().err
