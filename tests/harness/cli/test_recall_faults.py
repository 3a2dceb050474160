"""tiny-T recalls what its prompts ask for, and faults of the engine break what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.llm import LLM
from harness.cli.fault_cases import open_sound
from harness.cli.recall_faults import MIN_CHANGED_SHARE, class_shares, recall_cases
from harness.core.engine_face import EngineSettings
from harness.core.results import TokenMatch
from harness.core.status import PositionStatus, RunStatus
from harness.run.token_mutation import FaultVerdict, Finding, judge_faults
from scripts.train_tiny.prompts import asks, suite_text
from suites.loader import load_token_suite
from tiny_checkpoints.generator import generate
from tiny_checkpoints.recall_tasks import ids_of

ASKS = {ask.name: ask for ask in asks()}
PROMPTS = {prompt.name: prompt for prompt in load_token_suite("recall").prompts}
CASES = recall_cases()
FAULTS = list(dict.fromkeys(case.name for case in CASES if not case.is_control))
FAST = ("window off by one", "compressor tail lost at a chunk border", "bucket off by one")


@pytest.fixture(scope="module")
def tiny_t(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("tiny-T", tmp_path_factory.mktemp("checkpoints") / "tiny-T")


def _judged(name: str, checkpoint: Path, max_prompts: int = 4) -> list[FaultVerdict]:
    cases = [case for case in CASES if case.name == name][:max_prompts]
    return list(judge_faults(cases, open_sound, str(checkpoint)))


def test_the_suite_is_what_the_script_writes() -> None:
    from suites import loader

    file = Path(loader.__file__).parent / "tokens" / "recall.toml"
    assert file.read_text("utf-8") == suite_text()
    assert set(PROMPTS) == set(ASKS)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_one_prompt_of_each_class_is_answered(tiny_t: Path, numerics: str) -> None:
    settings = EngineSettings(str(tiny_t), numerics=numerics, num_threads=1)
    chosen = [ask for name, ask in ASKS.items() if name.endswith("-1")]
    wrong, asked = 0, 0
    with LLM(settings) as engine:
        for ask in chosen:
            (said,) = engine.generate([ids_of(ask.prompt)], max_tokens=len(ask.answer))
            pairs = zip(said.token_ids, ids_of(ask.answer), strict=True)
            wrong += sum(ours != theirs for ours, theirs in pairs)
            asked += len(ask.answer)
    assert asked > 100
    assert wrong <= 0.1 * asked


@pytest.mark.parametrize("name", FAST)
def test_a_fault_is_found_and_breaks_its_class(name: str, tiny_t: Path) -> None:
    verdicts = _judged(name, tiny_t, max_prompts=2)
    assert all(verdict.is_right for verdict in verdicts)
    (share,) = class_shares(verdicts)
    assert share.changed is not None
    assert share.changed >= MIN_CHANGED_SHARE


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in FAST])
def test_the_other_faults_are_found(name: str, tiny_t: Path) -> None:
    assert all(verdict.is_right for verdict in _judged(name, tiny_t))


@pytest.mark.slow
def test_without_a_fault_every_setting_matches(tiny_t: Path) -> None:
    controls = [case for case in CASES if case.is_control]
    assert controls
    for verdict in judge_faults(controls, open_sound, str(tiny_t)):
        assert verdict.is_right, verdict.case.name


def _verdict(case_number: int, oracle: tuple[int, ...], candidate: tuple[int, ...]) -> FaultVerdict:
    case = [case for case in CASES if case.name == "bucket off by one"][case_number]
    match = TokenMatch(
        prompt=case.prompt.name,
        status=RunStatus.DIVERGED,
        oracle_ids=oracle,
        candidate="faulty",
        oracle="sound",
        message="ids differ",
        positions=(PositionStatus.DIVERGED,) * len(oracle),
        candidate_ids=candidate,
    )
    return FaultVerdict(case, Finding(RunStatus.DIVERGED, "prefill", 0), match)


def test_a_share_is_taken_over_all_tokens_of_a_class() -> None:
    verdicts = [_verdict(0, (1, 2, 3), (1, 2, 9)), _verdict(1, (4,), (5,))]
    (share,) = class_shares(verdicts)
    assert (share.fault, share.stem) == ("bucket off by one", "bucket")
    assert share.changed == pytest.approx(2 / 4)
    assert share.is_visible


def test_a_fault_that_changes_few_tokens_is_quiet() -> None:
    (share,) = class_shares([_verdict(0, (1, 2, 3, 4), (1, 2, 3, 5))])
    assert share.changed == pytest.approx(0.25)
    assert not share.is_visible


def test_every_fault_of_the_issue_has_a_class() -> None:
    from tests.harness.cli.test_token_mutation import ISSUE

    assert set(ISSUE) <= set(FAULTS)
