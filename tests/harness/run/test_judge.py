"""The judge accepts what is right, on many seeds and families, and names what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from harness.core.case import Tolerance
from harness.core.errors import KernelError
from harness.core.numerics import Numerics
from harness.core.op_table import OpTable
from harness.core.status import OpStatus
from harness.run.clock import ManualClock
from harness.run.judge import Judge
from references.op_table import TABLE
from tests.harness.run.budgets import TOLERANCES
from tests.harness.run.fake_runtime import poisoned
from tests.harness.run.problems import small_case
from tests.harness.run.right_candidates import RIGHT
from tests.harness.run.wrong_candidates import WRONG, Wrong

FAMILIES = ("base", "zero_rows", "zero_block", "masked_rows", "ties", "scale_up", "extremes")
LAYOUTS = ("transposed", "strided", "offset", "expanded")


def right_judge(fp8_max: int = 240) -> Judge:
    return Judge(TABLE, OpTable(RIGHT, fp8_max), TOLERANCES, "fake", poisoned)


@pytest.mark.parametrize("op", RIGHT)
def test_right_candidates_pass_on_many_seeds(op: str) -> None:
    judge = right_judge()
    for seed in range(25):
        result = judge.run(small_case(op, seed=seed))
        assert result.status is OpStatus.PASS, (result.case_id, result.message)
        assert all(error.num_compared > 0 for error in result.errors)


@pytest.mark.parametrize("fp8_max", [240, 448])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("op", RIGHT)
def test_right_candidates_pass_in_every_family(op: str, family: str, fp8_max: int) -> None:
    for seed in range(3):
        result = right_judge(fp8_max).run(small_case(op, family=family, seed=seed))
        assert result.status is OpStatus.PASS, (result.case_id, result.message, result.errors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", RIGHT)
def test_right_candidates_pass_in_every_layout(op: str, layout: str) -> None:
    result = right_judge().run(small_case(op, layout=layout))
    assert result.status is OpStatus.PASS, (result.case_id, result.message)


@pytest.mark.parametrize("op", TABLE.ops)
def test_every_op_of_the_sheet_is_judged_and_its_probe_is_one(op: str) -> None:
    judge = Judge(TABLE, TABLE, TOLERANCES, "fake")
    result = judge.run(small_case(op, probe=True))
    assert result.status is OpStatus.PASS, (result.message, result.nulls)
    assert len(result.nulls) >= 3
    assert all(result.nulls.values())


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_candidate_gets_the_status_of_its_mistake(wrong: Wrong) -> None:
    kernels = OpTable({wrong.op: wrong.make()}, fp8_max=240)
    judge = Judge(TABLE, kernels, TOLERANCES, "fake", poisoned)
    result = judge.run(small_case(wrong.op, **wrong.changes))
    assert result.status is wrong.status, result.message
    assert result.message


def test_a_mismatch_names_the_place_and_both_values() -> None:
    kernels = OpTable({"rms_norm": next(w for w in WRONG if w.name == "zero_row").make()})
    result = Judge(TABLE, kernels, TOLERANCES, "fake").run(small_case("rms_norm"))
    (error,) = result.errors
    assert error.worst_slice == (2,)
    assert error.worst_index[0] == 2
    assert error.worst_kernel_value == 0.0
    assert f"at {error.worst_index}: 0, golden" in result.message


def test_an_error_keeps_its_traceback() -> None:
    kernels = OpTable({"rms_norm": next(w for w in WRONG if w.name == "raises").make()})
    result = Judge(TABLE, kernels, TOLERANCES, "fake").run(small_case("rms_norm"))
    assert result.message == "IndexError: tile 3 of 3"
    assert "wrong_candidates.py" in result.detail


def test_an_op_the_kernels_lack_is_unsupported() -> None:
    result = Judge(TABLE, OpTable({}), TOLERANCES, "fake").run(small_case("rope"))
    assert result.status is OpStatus.UNSUPPORTED
    assert result.message == "the kernel table has no op rope"


def test_a_kernel_that_refuses_is_unsupported_with_its_reason() -> None:
    def refuses(*arguments: object, numerics: object) -> None:
        raise KernelError("UNSUPPORTED", "d is 96, this kernel ends at 64")

    judge = Judge(TABLE, OpTable({"rms_norm": refuses}), TOLERANCES, "fake")
    result = judge.run(small_case("rms_norm"))
    assert result.status is OpStatus.UNSUPPORTED
    assert result.message == "d is 96, this kernel ends at 64"


def test_without_a_golden_nothing_passes() -> None:
    def broken(*arguments: object, numerics: object) -> None:
        raise ArithmeticError("no golden")

    for reference in (OpTable({}), OpTable({"rms_norm": broken})):
        result = Judge(reference, TABLE, TOLERANCES, "fake").run(small_case("rms_norm"))
        assert result.status is OpStatus.SKIPPED


def test_a_tolerance_that_takes_a_null_solution_is_vacuous() -> None:
    wide = {"rms_norm": {"y": Tolerance(1, 1, floor=100.0, slice_axes=(0,), reason="too wide")}}
    result = Judge(TABLE, TABLE, wide, "fake").run(small_case("rms_norm", probe=True))
    assert result.status is OpStatus.VACUOUS
    assert result.message == "the judge accepts the null solution y:zeros"
    assert result.nulls["y:zeros"] is False


def test_a_probe_whose_golden_is_a_null_is_vacuous() -> None:
    axes = {"T": 1, "d": 64}
    case = small_case("rms_norm", axes=axes, family="zero_rows", probe=True)
    result = Judge(TABLE, TABLE, TOLERANCES, "fake").run(case)
    assert result.status is OpStatus.VACUOUS
    assert result.message == "the golden of y equals its null 'zeros'"


def test_no_rows_are_never_a_pass() -> None:
    case = small_case("rms_norm", axes={"T": 0, "d": 64})
    result = Judge(TABLE, TABLE, TOLERANCES, "fake").run(case)
    assert result.status is OpStatus.VACUOUS
    assert result.message == "no element was compared"


def test_a_baseline_that_overflows_alone_judges_nothing() -> None:
    def overflowing(x: torch.Tensor, *rest: object, numerics: Numerics) -> torch.Tensor:
        return x * (1.0 if numerics.activation == "float64" else float("inf"))

    reference = OpTable({"rms_norm": overflowing})
    result = Judge(reference, TABLE, TOLERANCES, "fake").run(small_case("rms_norm"))
    assert result.status is OpStatus.VACUOUS
    assert "the baseline of y overflows" in result.message


def test_repeats_keep_every_time_and_compare_bytes() -> None:
    clock = ManualClock()

    def slow(*arguments: object, numerics: Numerics) -> torch.Tensor:
        clock.advance_ms(2.5)
        return RIGHT["rms_norm"](*arguments, numerics=numerics)

    judge = Judge(TABLE, OpTable({"rms_norm": slow}), TOLERANCES, "fake", repeat=3, clock=clock)
    result = judge.run(small_case("rms_norm"))
    assert result.status is OpStatus.PASS
    assert result.elapsed_ms == (2.5, 2.5, 2.5)


def test_counters_of_the_first_run_are_kept() -> None:
    judge = Judge(
        TABLE, TABLE, TOLERANCES, "fake", counters=lambda: {"instructions": 7, "num_fallbacks": 1}
    )
    result = judge.run(small_case("rms_norm"))
    assert result.counters == {"instructions": 7, "num_fallbacks": 1}
    assert result.num_fallbacks == 1


def test_an_op_that_launches_no_kernel_is_no_pass() -> None:
    judge = Judge(TABLE, TABLE, TOLERANCES, "interpret", counters=lambda: {"launches": 0})
    result = judge.run(small_case("rms_norm"))
    assert result.status is OpStatus.UNSUPPORTED
    assert result.message == "no kernel was launched on interpret"


def test_a_case_that_names_its_cores_runs_on_them_or_not_at_all() -> None:
    case = replace(small_case("rms_norm"), lnc=2)
    result = Judge(TABLE, TABLE, TOLERANCES, "fake").run(case)
    assert result.status is OpStatus.UNSUPPORTED
    assert "2 cores" in result.message
    asked: list[int] = []

    @contextmanager
    def cores(degree: int) -> Iterator[None]:
        asked.append(degree)
        yield

    judge = Judge(TABLE, TABLE, TOLERANCES, "fake", cores=cores)
    assert judge.run(case).status is OpStatus.PASS
    assert judge.run(small_case("rms_norm")).status is OpStatus.PASS
    assert asked == [2]
    assert "/lnc2/" in case.case_id
