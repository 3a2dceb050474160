"""Token match with fake engines: every status, and who pays for a dead rank."""

import numpy as np
import pytest

from harness.core.engine_face import EngineSettings
from harness.core.errors import KernelError, MissingEvidenceError, RankError, UsageError
from harness.core.status import PositionStatus, RunStatus
from harness.core.token_suite import NearTieLimits, Prompt, TokenPair, TokenSuite
from harness.run.tokens import quote, run_tokens
from tests.harness.fake_engine import FakeWorld, clean_logits, crash, hang

ONE = EngineSettings("ckpt", cp=1, numerics="exact")
TWO = EngineSettings("ckpt", cp=2, numerics="exact")
FOUR = EngineSettings("ckpt", cp=4, numerics="exact")
FAST = EngineSettings("ckpt", numerics="fast")
CHUNKED = EngineSettings("ckpt", numerics="fast", max_num_batched_tokens=4)
KERNELS = EngineSettings("ckpt", numerics="fast", ops=("kernels.op_table:TABLE",))
SHORT = Prompt("short", max_tokens=9, ids=(3, 5, 7))
LONG = Prompt(
    "long", max_tokens=9, length=20, seed=1, min_window_wraps=2, min_blocks_excluded_share=0.5
)


def strict_suite(*candidates, prompts=(SHORT, LONG), bound=1e-9):
    pairs = tuple(
        TokenPair(f"exact-cp{one.cp}", one, ONE, "equal", logit_bound=bound) for one in candidates
    )
    return TokenSuite("test", "tiny-A", prompts, pairs)


def near_suite(prompts=(SHORT, LONG), limits=None):
    pair = TokenPair("fast-kernels", KERNELS, FAST, "near_tie", noise=(CHUNKED,))
    return TokenSuite("test", "tiny-A", prompts, (pair,), limits or NearTieLimits())


def judged(suite, world):
    return {one.key: one.match for one in run_tokens(suite, world)}


def moved(settings, at_length, delta):
    """Logits of one setting moved by `delta` [V] at prefixes of one length."""

    def logits(asked, prefix):
        clean = clean_logits(asked, prefix)
        return clean + delta if asked == settings and len(prefix) == at_length else clean

    return logits


def near_tie_world(candidate_gap=0.01, reference_gap=0.01, noise=0.02):
    """The oracle's top two nearly tie after 3 + 8 ids; the candidate says it the other way."""

    def logits(asked, prefix):
        clean = clean_logits(asked, prefix)
        if asked == CHUNKED:
            clean[0] += noise
        if len(prefix) == 3 + 8:
            first = int(np.argmax(clean_logits(asked, prefix)))
            second = (first + 1) % 16
            clean[second] = clean[first] - reference_gap
            if asked == KERNELS:
                clean[second] = clean[first] + candidate_gap
        return clean

    return FakeWorld(logits)


def test_equal_settings_match_and_each_engine_is_opened_once():
    world = FakeWorld()
    matches = judged(strict_suite(TWO, FOUR), world)
    assert list(matches) == [
        "exact-cp2/short",
        "exact-cp2/long",
        "exact-cp4/short",
        "exact-cp4/long",
    ]
    assert {match.status for match in matches.values()} == {RunStatus.MATCH}
    assert world.opened == world.closed == [ONE, TWO, FOUR]
    long = matches["exact-cp4/long"]
    assert (long.prompt_length, long.num_generated, long.prefix_length) == (20, 9, 9)
    assert long.positions == (PositionStatus.MATCH,) * 9
    assert (long.max_logit_error, long.logit_bound, long.noise) == (0.0, 1e-9, None)
    assert (long.forced_match_rate, long.mean_kl_nats) == (1.0, 0.0)
    assert long.margins == (0.5,) * 9
    assert long.counters["collectives_per_step"] == 20.0
    assert long.candidate_ids == long.oracle_ids
    assert quote(long) == "long 9/9"


def test_a_logit_beyond_the_bound_diverges_though_the_ids_are_equal():
    world = FakeWorld(moved(TWO, 3 + 4, 2e-9 * np.eye(16)[0]))
    match = judged(strict_suite(TWO, prompts=(SHORT,)), world)["exact-cp2/short"]
    assert match.status is RunStatus.DIVERGED
    assert match.message == "diverged at 4"
    assert match.first_divergence is None
    assert match.max_logit_error == pytest.approx(2e-9)
    within = FakeWorld(moved(TWO, 3 + 4, 0.5e-9 * np.eye(16)[0]))
    assert judged(strict_suite(TWO, prompts=(SHORT,)), within)["exact-cp2/short"].message == ""


@pytest.mark.parametrize(("length", "phase", "first"), [(3, "prefill", 0), (3 + 5, "decode", 5)])
def test_the_phase_of_the_first_wrong_token(length, phase, first):
    world = FakeWorld(moved(TWO, length, 9.0 * np.eye(16)[2] - 9.0 * np.eye(16)[3]))
    match = judged(strict_suite(TWO, prompts=(SHORT,)), world)["exact-cp2/short"]
    assert match.status is RunStatus.DIVERGED
    assert (match.phase, match.first_divergence, match.prefix_length) == (phase, first, first)
    # Teacher forcing puts the candidate back on the oracle's ids: one position is wrong, not all.
    assert match.forced_match_rate == pytest.approx(8 / 9)
    assert match.positions.count(PositionStatus.DIVERGED) == 1


def test_nan_logits_diverge_and_stay_out_of_the_record():
    world = FakeWorld(moved(TWO, 3 + 4, np.full(16, np.nan)))
    match = judged(strict_suite(TWO, prompts=(SHORT,)), world)["exact-cp2/short"]
    assert match.status is RunStatus.DIVERGED
    assert (match.max_logit_error, match.mean_kl_nats) == (None, None)


def test_too_few_tokens_diverge():
    world = FakeWorld(num_missing_tokens=1)
    match = judged(strict_suite(TWO, prompts=(SHORT,)), world)["exact-cp2/short"]
    assert match.status is RunStatus.DIVERGED
    assert "8 tokens" in match.message


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"num_window_wraps": 1.0, "min_blocks_excluded_share": 0.75}, "num_window_wraps"),
        ({"num_window_wraps": 5.0, "min_blocks_excluded_share": 0.4}, "is 0.4, at least 0.5"),
        ({"num_window_wraps": 5.0}, "is not reported"),
    ],
)
def test_a_prompt_that_exercised_too_little_is_vacuous(facts, said):
    matches = judged(strict_suite(TWO), FakeWorld(facts=facts))
    assert matches["exact-cp2/short"].status is RunStatus.MATCH
    assert matches["exact-cp2/long"].status is RunStatus.VACUOUS
    assert said in matches["exact-cp2/long"].message


def test_a_near_tie_is_told_as_one():
    match = judged(near_suite(), near_tie_world())["fast-kernels/short"]
    assert match.status is RunStatus.NEAR_TIE
    assert match.positions[8] is PositionStatus.NEAR_TIE
    assert (match.first_divergence, match.phase) == (8, "decode")
    assert match.noise == pytest.approx(0.02)
    assert match.logit_bound == pytest.approx(2 * 0.02 + 2 * 2**-5)
    assert quote(match) == "short 8/9, near tie at 8"


@pytest.mark.parametrize(("reference_gap", "candidate_gap"), [(0.3, 0.01), (0.01, 0.3)])
def test_a_wide_gap_on_either_side_diverges(reference_gap, candidate_gap):
    world = near_tie_world(candidate_gap, reference_gap)
    match = judged(near_suite(), world)["fast-kernels/short"]
    assert match.status is RunStatus.DIVERGED
    assert match.message == "diverged at 8"


def test_the_noise_never_comes_from_the_candidate():
    """The candidate's own error is 0.5; the noise that judges it stays that of the chunked run."""

    def logits(asked, prefix):
        clean = clean_logits(asked, prefix)
        if asked == CHUNKED:
            clean[0] += 0.001
        if asked == KERNELS:
            clean += 0.5 * (np.arange(16) % 2)
        return clean

    matches = judged(near_suite(), FakeWorld(logits))
    assert [match.noise for match in matches.values()] == pytest.approx([0.001, 0.001])


def test_the_oracles_decode_against_its_own_chunks_is_noise_too():
    world = FakeWorld()

    def logits(asked, prefix):
        clean = clean_logits(asked, prefix)
        generating = world.calls[-1] == (FAST, "generate")
        return clean + (0.03 if generating else 0.0) * np.eye(16)[1]

    world.logits = logits
    matches = judged(near_suite(), world)
    assert [match.noise for match in matches.values()] == pytest.approx([0.03, 0.03])


def test_more_flips_than_allowed_withdraw_every_near_tie_of_the_pair():
    def logits(asked, prefix):
        clean = clean_logits(asked, prefix)
        first = int(np.argmax(clean))
        if asked == CHUNKED:
            clean[0] += 0.02
        if len(prefix) in (3 + 2, 3 + 6):
            clean[(first + 1) % 16] = clean[first] + (0.01 if asked == KERNELS else -0.01)
        return clean

    matches = judged(near_suite(), FakeWorld(logits))
    short, long = matches["fast-kernels/short"], matches["fast-kernels/long"]
    assert short.status is RunStatus.DIVERGED
    assert "2 flips in 18 positions, 1 allowed" in short.message
    assert long.status is RunStatus.MATCH
    wider = near_suite(limits=NearTieLimits(max_flip_share=0.2, min_forced_match_rate=0.8))
    assert judged(wider, FakeWorld(logits))["fast-kernels/short"].status is RunStatus.NEAR_TIE


def test_a_distribution_that_is_too_far_diverges_without_a_flip():
    def logits(asked, prefix):
        clean = clean_logits(asked, prefix)
        return clean * 1.5 if asked == KERNELS else clean

    match = judged(near_suite(), FakeWorld(logits))["fast-kernels/long"]
    assert match.status is RunStatus.DIVERGED
    assert "mean KL" in match.message
    assert match.forced_match_rate == 1.0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (hang(), RunStatus.HANG),
        (crash(), RunStatus.CRASH),
        (RankError(3, "disagrees with rank 0 on token 4"), RunStatus.RANK_DESYNC),
        (KernelError("RUN_ERROR", "linear_fp8: operand 2 is out of bounds"), RunStatus.CRASH),
        (KernelError("UNSUPPORTED", "no such engine"), RunStatus.SKIPPED),
        (ZeroDivisionError("in the candidate"), RunStatus.CRASH),
    ],
)
def test_a_dead_rank_is_a_status_of_its_pairs_and_the_run_goes_on(error, status):
    world = FakeWorld()
    world.break_at(TWO, 3, error)
    matches = judged(strict_suite(TWO, FOUR), world)
    assert [match.status for match in matches.values()] == [
        status,
        status,
        RunStatus.MATCH,
        RunStatus.MATCH,
    ]
    assert "exact cp=2" in matches["exact-cp2/short"].message
    detail = matches["exact-cp2/short"].detail
    assert detail == error.detail if isinstance(error, RankError) else str(error) in detail
    assert world.closed == [ONE, TWO, FOUR]


def test_a_dead_oracle_leaves_no_pair_to_run():
    world = FakeWorld()
    world.break_at(ONE, 1, crash())
    matches = judged(strict_suite(TWO, FOUR), world)
    assert {match.status for match in matches.values()} == {RunStatus.CRASH}
    assert len(matches) == 4
    assert world.opened == [ONE]


def test_an_engine_that_does_not_open_is_a_crash_of_its_pairs():
    world = FakeWorld()
    world.break_at(TWO, 0, crash())
    matches = judged(strict_suite(TWO), world)
    assert {match.status for match in matches.values()} == {RunStatus.CRASH}


def test_an_oracle_that_is_a_candidate_elsewhere_is_judged_there_too():
    pairs = (
        TokenPair("first", TWO, ONE, "equal", logit_bound=0.0),
        TokenPair("second", ONE, FOUR, "equal", logit_bound=0.0),
    )
    suite = TokenSuite("test", "tiny-A", (SHORT,), pairs)
    matches = judged(suite, FakeWorld())
    assert {key: match.status for key, match in matches.items()} == {
        "first/short": RunStatus.MATCH,
        "second/short": RunStatus.MATCH,
    }


def test_a_missing_sdk_is_not_the_candidates_doing():
    world = FakeWorld()
    world.break_at(TWO, 1, MissingEvidenceError("no nki here"))
    with pytest.raises(MissingEvidenceError):
        judged(strict_suite(TWO), world)


def test_wrong_usage_is_raised_not_judged():
    suite = strict_suite(TWO, prompts=(Prompt("wild", max_tokens=2, ids=(3, 99)),))
    with pytest.raises(UsageError, match="id 99 at position 1"):
        judged(suite, FakeWorld())


def test_progress_tells_every_setting():
    told = []
    list(run_tokens(strict_suite(TWO), FakeWorld(), lambda *step: told.append(step)))
    assert told == [
        ("exact cp=1 ops=references", 0, 2),
        ("exact cp=2 ops=references", 1, 2),
        ("judged", 2, 2),
    ]


def batched_suite(batch=2, prompts=(SHORT, LONG)):
    pair = TokenPair("batch", ONE, ONE, "equal", logit_bound=0.0, batch=batch)
    return TokenSuite("test", "tiny-A", prompts, (pair,))


def test_a_setting_is_judged_among_others_against_itself_alone():
    world = FakeWorld()
    matches = judged(batched_suite(), world)
    assert [match.status for match in matches.values()] == [RunStatus.MATCH] * 2
    assert world.opened == [ONE]
    # Each prompt alone and scored, then both in one call.
    assert [call for _, call in world.calls] == ["generate", "score"] * 2 + ["generate"]


def test_what_differs_only_among_others_is_found():
    world = FakeWorld()

    def logits(asked, prefix):
        among_others = sum(call == (ONE, "generate") for call in world.calls) == 3
        wrong = among_others and len(prefix) == 3 + 4
        return clean_logits(asked, prefix) + (1e-9 if wrong else 0.0) * np.eye(16)[0]

    world.logits = logits
    matches = judged(batched_suite(), world)
    assert matches["batch/short"].status is RunStatus.DIVERGED
    assert matches["batch/short"].first_changed == 4
    assert matches["batch/long"].status is RunStatus.MATCH


def test_prompts_that_ask_for_fewer_tokens_keep_fewer():
    short = Prompt("brief", max_tokens=2, ids=(3, 5, 7))
    matches = judged(batched_suite(3, (short, LONG)), FakeWorld())
    assert [match.num_generated for match in matches.values()] == [2, 9]
    assert {match.status for match in matches.values()} == {RunStatus.MATCH}


def test_a_rank_that_fails_among_others_is_a_status_of_the_pair():
    world = FakeWorld()
    world.break_at(ONE, 5, crash())
    assert {match.status for match in judged(batched_suite(), world).values()} == {RunStatus.CRASH}


def test_one_setting_alone_is_no_pair():
    with pytest.raises(UsageError, match="the same setting"):
        TokenPair("batch", ONE, ONE, "equal", logit_bound=0.0)
    with pytest.raises(UsageError, match="batch=0"):
        TokenPair("batch", ONE, TWO, "equal", logit_bound=0.0, batch=0)
