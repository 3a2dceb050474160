"""A suite goes on past crashes and hangs, in the order of its cases, and refuses what is void."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.case import Tolerance
from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.results import ParityResult
from harness.core.status import OpStatus
from harness.run.bundle import read_bundle
from harness.run.isolate import Limits
from harness.run.judge import Judge
from harness.run.parity import ParityTargets, check_suite, run_cases, run_suite
from references.op_table import TABLE
from tests.harness.run.budgets import TOLERANCES
from tests.harness.run.problems import small_case

TARGETS = ParityTargets("references.op_table:TABLE", "tests.harness.run.unruly:BAD_TABLE")
ROWS = [small_case("rms_norm", axes={"T": rows, "d": 64}) for rows in (1, 3, 2, 4, 5)]


def test_a_crash_and_a_hang_become_statuses_and_the_suite_goes_on(tmp_path: Path) -> None:
    seen: list[ParityResult] = []
    results = run_suite(
        [*ROWS, small_case("rope")],
        TOLERANCES,
        TARGETS,
        jobs=2,
        limits=Limits(time_limit_s=2.0),
        bundle_root=tmp_path,
        on_result=seen.append,
    )
    assert [result.status.value for result in results] == [
        "PASS",
        "RUN_ERROR",
        "PASS",
        "TIMEOUT",
        "PASS",
        "UNSUPPORTED",
    ]
    assert results[1].message.startswith("the worker died with signal 11 (SIGSEGV)")
    assert results[3].message.startswith("no result within 2 s")
    assert [result.case_id for result in results] == [case.case_id for case in ROWS] + [
        small_case("rope").case_id
    ]
    assert sorted(r.case_id for r in seen) == sorted(r.case_id for r in results)
    bundles = [read_bundle(directory).case for directory in tmp_path.iterdir()]
    assert sorted(case.axes["T"] for case in bundles) == [3, 4]


def test_workers_and_this_process_give_the_same_numbers() -> None:
    cases = [small_case("rms_norm", seed=seed) for seed in range(3)] + [small_case("swiglu")]
    apart = run_suite(cases, TOLERANCES, TARGETS)
    here = run_cases(TARGETS.judge(TOLERANCES, backend="interpret"), cases)
    assert [r.errors for r in apart] == [r.errors for r in here]
    assert {r.status for r in apart} == {OpStatus.PASS}


def test_a_suite_without_cases_is_refused() -> None:
    with pytest.raises(UsageError, match="the suite has no case"):
        run_suite([], TOLERANCES, TARGETS)
    with pytest.raises(UsageError, match="the suite has no case"):
        run_cases(Judge(TABLE, TABLE, TOLERANCES, "fake"), [])


def test_two_cases_of_one_id_are_refused() -> None:
    with pytest.raises(UsageError, match=r"rms_norm/T5-d96/bfloat16/s0 occurs twice"):
        check_suite([small_case("rms_norm"), small_case("rms_norm")], TOLERANCES)


def test_an_output_without_a_budget_is_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="op swiglu: output y has no tolerance"):
        check_suite([small_case("swiglu")], {"rms_norm": TOLERANCES["rms_norm"]})
    check_suite([small_case("vocab_argmax")], {})  # exact outputs need none


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (ParityTargets("references.op_table:TABEL", TARGETS.kernels), "no 'TABEL'"),
        (ParityTargets("references.op_table", TARGETS.kernels), "must read"),
        (ParityTargets("references.op_table:TABLE", "harness.core.ops:OP_SHEET"), "not an OpTable"),
        (ParityTargets("references.op_table:TABLE", "kernels.no_such:TABLE"), "no module"),
    ],
)
def test_a_wrong_target_is_a_usage_error(targets: ParityTargets, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_suite(ROWS, TOLERANCES, targets)


def no_backend(name: str) -> None:
    """What `select_backend` does where the SDK is absent."""
    raise MissingEvidenceError(f"backend {name!r}: nki is not installed")


def test_a_missing_backend_keeps_its_kind_of_error() -> None:
    targets = ParityTargets(
        TARGETS.reference, TARGETS.kernels, select_backend=f"{__name__}:no_backend"
    )
    with pytest.raises(MissingEvidenceError, match="backend 'simulate': nki is not installed"):
        run_suite(ROWS, TOLERANCES, targets, backend="simulate")


def test_a_case_that_cannot_be_built_is_a_usage_error() -> None:
    case = small_case("linear_fp8", axes={"T": 1, "N": 8, "K": 40})
    targets = ParityTargets("references.op_table:TABLE", "references.op_table:TABLE")
    with pytest.raises(UsageError, match="K=40 must be a multiple of 32"):
        run_suite([case], TOLERANCES, targets)


def test_repeats_compare_bytes_across_processes_too() -> None:
    case = small_case("rms_norm", axes={"T": 50, "d": 512})
    wide = {"rms_norm": {"y": Tolerance(4, 4, 1e-7, (0,), "1 ulp in one place is no finding")}}
    drifting = ParityTargets(TARGETS.reference, "tests.harness.run.unruly:DRIFTING_TABLE")
    (alone,) = run_suite([case], wide, drifting, repeat=1)
    assert alone.status is OpStatus.PASS
    (repeated,) = run_suite([case], wide, drifting, repeat=2)
    assert repeated.status is OpStatus.RUN_ERROR
    assert repeated.message == "another process gives other bytes on equal inputs"
    (stable,) = run_suite([case], wide, TARGETS, repeat=3)
    assert stable.status is OpStatus.PASS
    assert len(stable.elapsed_ms) == 3
