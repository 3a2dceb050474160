"""Faults in the engine: each is found as what it is, where it is, and nothing else is."""

import io

import pytest
from rich.console import Console

from harness.cli.engine_faults import ENGINE_FAULTS
from harness.cli.fault_cases import fault_cases, open_sound
from harness.cli.token_mutation import print_faults, record_faults
from harness.core.errors import ExitCode, VacuousError
from harness.core.status import RunStatus
from harness.run.store import new_run
from harness.run.token_mutation import FaultVerdict, Finding, judge_faults

CASES = {case.name: case for case in fault_cases()}
FAST = (
    "window off by one",
    "rank-local argmax",
    "skipped collective",
    "page reused too early",
    "sums of another batch",
    "overflow decided alone",
)
ISSUE = (
    "window off by one",
    "stale page",
    "rank-local argmax",
    "skipped collective",
    "wrong expert shard",
    "seed skew",
    "sink dropped on one rank",
    "compressor tail lost at a chunk border",
    "padding leak",
    "bucket off by one",
    "scale of the neighbouring block",
    "page reused too early",
)


def judged(name, checkpoint):
    (verdict,) = judge_faults([CASES[name]], open_sound, str(checkpoint))
    return verdict


def test_every_fault_that_was_asked_for_has_a_case():
    assert set(ISSUE) <= set(ENGINE_FAULTS) <= set(CASES)
    assert {case.expected.status for case in CASES.values()} == {
        RunStatus.MATCH,
        RunStatus.DIVERGED,
        RunStatus.RANK_DESYNC,
        RunStatus.CRASH,
        RunStatus.HANG,
    }


@pytest.mark.parametrize("name", FAST)
def test_a_fault_is_found_with_status_phase_and_first_position(name, checkpoint):
    verdict = judged(name, checkpoint)
    assert verdict.found == CASES[name].expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_the_other_faults_are_found_and_controls_match(name, checkpoint):
    verdict = judged(name, checkpoint)
    assert verdict.found == CASES[name].expected


def test_the_message_of_a_failed_rank_says_how_far_it_came(checkpoint):
    verdict = judged("skipped collective", checkpoint)
    assert "rank 1 is in attention.3 " in verdict.match.message
    assert ", rank 0 is in moe.2 " in verdict.match.message
    assert "after 1 tokens of prompt 'short'" in verdict.match.message


def verdicts_of(checkpoint, tmp_path):
    """A fault whose right answer is withheld, and a control."""
    right = judged("window off by one", checkpoint)
    wrong = FaultVerdict(right.case, Finding(RunStatus.DIVERGED, "decode", 5), right.match)
    return right, wrong


def test_a_fault_found_at_another_position_counts_as_missed(checkpoint, tmp_path):
    right, wrong = verdicts_of(checkpoint, tmp_path)
    screen = Console(file=io.StringIO(), width=200)
    print_faults(screen, [right, wrong])
    printed = screen.file.getvalue()
    assert "1 of 2 faults found" in printed
    assert "MISSED" in printed
    with new_run(tmp_path, command=["x"], environment={}) as store:
        assert record_faults(store, [right]) is ExitCode.PASS
        assert record_faults(store, [right, wrong]) is ExitCode.MISMATCH
        values = {r.key: r.payload["values"] for r in store.read("metric").records}
    assert values["tokens.mutation.found_share"] == [0.5]


def test_a_control_that_does_not_match_makes_the_table_vacuous(checkpoint, tmp_path):
    right, _ = verdicts_of(checkpoint, tmp_path)
    control = next(case for case in CASES.values() if case.is_control)
    with new_run(tmp_path, command=["x"], environment={}) as store:
        with pytest.raises(VacuousError, match="without a fault it must match"):
            record_faults(store, [right, FaultVerdict(control, right.found, right.match)])
        with pytest.raises(VacuousError, match="no fault was put in"):
            record_faults(store, [])
