"""The verdict on a run: the worst decides, and what is missing is never green."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import ExitCode
from harness.core.metric import GateVerdict
from harness.core.record import RunRecord, to_plain
from harness.core.results import ParityResult, PointStatus, SweepPoint
from harness.core.status import GateStatus, OpStatus
from reports.ledger import Ledger, read_run
from reports.verdict import RunVerdict, verdict_of
from tests.reports.sample_run import green_records, output_errors, record, stages, write_run
from tests.reports.sample_sweep import sweep_config


def judged(tmp_path: Path, records: Sequence[RunRecord]) -> RunVerdict:
    return verdict_of(read_run(write_run(tmp_path / "run", records)))


def test_a_run_without_blemish_passes(green: Ledger) -> None:
    verdict = verdict_of(green)
    assert (verdict.exit_code, verdict.word) == (ExitCode.PASS, "PASS")
    assert verdict.sentence.startswith("8 of 8 cases passed, 6 of 6 comparisons matched")


def test_a_lost_rank_outranks_every_other_failure(sample: Ledger) -> None:
    verdict = verdict_of(sample)
    assert (verdict.exit_code, verdict.word) == (ExitCode.RANK, "RANK LOST")
    assert verdict.red_stages == ("parity", "tokens", "sweep", "gate")
    assert {area.kind: (area.num_good, area.num_judged) for area in verdict.areas} == {
        "parity": (50, 56),
        "tokens": (6, 9),
        "sweep": (9, 11),
        "gate": (3, 5),
    }


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (OpStatus.OUT_OF_TOLERANCE, ExitCode.MISMATCH),
        (OpStatus.TIMEOUT, ExitCode.MISMATCH),
        (OpStatus.UNSUPPORTED, ExitCode.CANNOT_JUDGE),
        (OpStatus.SKIPPED, ExitCode.CANNOT_JUDGE),
        (OpStatus.VACUOUS, ExitCode.VACUOUS),
    ],
)
def test_one_case_that_is_not_green_decides(
    tmp_path: Path, status: OpStatus, code: ExitCode
) -> None:
    errors = (output_errors(2.0),) if status.compared_values else ()
    red = ParityResult("op/x", "op", "interpret", status, "why", errors=errors)
    assert judged(tmp_path, [*green_records(), record("parity", "x", red)]).exit_code is code


def test_a_pass_whose_judge_accepts_a_null_answer_is_vacuous(tmp_path: Path) -> None:
    result = ParityResult(
        "op/x",
        "op",
        "interpret",
        OpStatus.PASS,
        errors=(output_errors(0.5),),
        nulls={"zeros": True, "mean": False},
    )
    assert judged(tmp_path, [record("parity", "x", result)]).exit_code is ExitCode.VACUOUS


def test_stages_alone_are_no_evidence(tmp_path: Path) -> None:
    verdict = judged(tmp_path, [record("stage", "checkpoint", stages()[0])])
    assert verdict.exit_code is ExitCode.VACUOUS
    assert "Nothing was judged" in verdict.sentence
    assert "No records of: kernel parity, token match, latency sweep, gate" in verdict.sentence


@pytest.mark.parametrize(
    ("status", "code"),
    [("RANK", ExitCode.RANK), ("MISMATCH", ExitCode.MISMATCH), ("odd", ExitCode.CANNOT_JUDGE)],
)
def test_a_stage_that_did_not_pass_is_heard(tmp_path: Path, status: str, code: ExitCode) -> None:
    payload = {"name": "sweep", "status": status, "elapsed_s": None, "message": ""}
    verdict = judged(tmp_path, [*green_records(), record("stage", "sweep", payload)])
    assert (verdict.exit_code, verdict.red_stages) == (code, ("sweep",))


def point(status: str, *requests: dict[str, Any]) -> RunRecord:
    message = "" if status == PointStatus.OK else "why"
    return record("sweep", "k", SweepPoint("k", sweep_config(9, 1), status, message, requests))


def test_pruned_points_do_not_count_and_alone_prove_nothing(tmp_path: Path) -> None:
    pruned = point(PointStatus.PRUNED)
    assert judged(tmp_path, [*green_records(), pruned]).exit_code is ExitCode.PASS
    assert judged(tmp_path / "alone", [pruned]).exit_code is ExitCode.VACUOUS


def test_an_ok_point_with_a_failed_request_is_not_good(tmp_path: Path) -> None:
    request = {"t_send_ns": 1, "token_ns": [], "error": "connection reset"}
    assert judged(tmp_path, [point(PointStatus.OK, request)]).exit_code is ExitCode.MISMATCH


def test_advisory_verdicts_do_not_count(tmp_path: Path) -> None:
    advisory = GateVerdict("m", GateStatus.INCONCLUSIVE, "3 pairs", advisory=True)
    counted = to_plain(advisory) | {"advisory": False}
    records = [*green_records(), record("gate", "m", advisory)]
    assert judged(tmp_path, records).exit_code is ExitCode.PASS
    records = [*green_records(), record("gate", "m", counted)]
    assert judged(tmp_path / "2", records).exit_code is ExitCode.CANNOT_JUDGE


def test_a_planned_record_that_is_missing_leaves_the_run_unjudged(tmp_path: Path) -> None:
    """A run whose ledger lost lines must not look like a smaller, greener run."""
    records = green_records()
    keys = [one.key for one in records if one.kind == "parity"]
    plan = record("plan", "parity", {"kind": "parity", "keys": keys})
    whole = judged(tmp_path, [plan, *records])
    assert whole.exit_code is ExitCode.PASS
    lost = judged(tmp_path / "b", [plan, *(one for one in records if one.key != keys[-1])])
    assert lost.exit_code is ExitCode.CANNOT_JUDGE
    assert "1 planned have no record" in lost.sentence


def _compiled(status: str) -> RunRecord:
    payload = {"label": "rms_norm(bfloat16[1x64])", "op": "rms_norm", "status": status}
    return record("compile", f"k{status}", {**payload, "message": "out of memory"})


def test_a_run_that_only_compiled_is_judged_by_its_graphs(tmp_path: Path) -> None:
    good = verdict_of(read_run(write_run(tmp_path / "good", [_compiled("OK")])))
    assert (good.word, good.exit_code) == ("PASS", ExitCode.PASS)
    assert "1 of 1 graph compiled" in good.sentence
    both = [_compiled("OK"), _compiled("FAILED")]
    bad = verdict_of(read_run(write_run(tmp_path / "bad", both)))
    assert (bad.word, bad.exit_code) == ("FAIL", ExitCode.MISMATCH)
    assert "1 of 2 graphs compiled" in bad.sentence


def test_kinds_that_a_run_need_not_have_are_not_missed(tmp_path: Path) -> None:
    verdict = verdict_of(read_run(write_run(tmp_path / "run", [_compiled("OK")])))
    assert set(verdict.absent) == {"kernel parity", "token match", "latency sweep", "gate"}
