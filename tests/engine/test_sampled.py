"""Sampled requests in the engine: whose distribution they follow, and what they depend on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from engine import LLM
from engine.schedule.choice import _ACCEPT, TokenChooser
from engine.schedule.distribution import SamplingRule
from harness.core.errors import UsageError
from tests.engine.oracle import all_ids, settings

PROMPT = all_ids("steady_mtp", "exact")[:5]
RULE = SamplingRule(temperature=2.0, top_k=3, seed=5)
NUM_TOKENS = 3


def _prompts() -> list[list[int]]:
    ids = all_ids("steady_mtp", "exact")
    return [ids[:30], ids[5:9], ids[3:20], ids[:1]]


def _rules() -> list[SamplingRule]:
    return [
        SamplingRule(temperature=0.8, top_k=5, seed=1),
        SamplingRule(temperature=1.5, seed=2),
        SamplingRule(),
        SamplingRule(temperature=1.0, top_p=0.9, seed=4),
    ]


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
@pytest.mark.parametrize("speculative", ["", "dspark"])
@pytest.mark.parametrize("prefill", ["as-decode", "attention"])
def test_a_seed_says_the_same_alone_in_a_batch_and_shuffled(
    numerics: str, speculative: str, prefill: str
) -> None:
    prompts, rules, order = _prompts(), _rules(), [2, 0, 3, 1]
    chosen = settings("steady_mtp", numerics=numerics, speculative=speculative, prefill=prefill)
    with LLM(chosen) as llm:
        batch = llm.generate(prompts, max_tokens=6, sampling=rules)
        shuffled = llm.generate(
            [prompts[at] for at in order], max_tokens=6, sampling=[rules[at] for at in order]
        )
        for at, (prompt, rule) in enumerate(zip(prompts, rules, strict=True)):
            (alone,) = llm.generate([prompt], max_tokens=6, sampling=rule)
            assert alone.token_ids == batch[at].token_ids == shuffled[order.index(at)].token_ids
        other = llm.generate(prompts, max_tokens=6, sampling=[replace(r, seed=9) for r in rules])
    same = [one.token_ids == two.token_ids for one, two in zip(batch, other, strict=True)]
    # Another seed says something else, except where nothing is drawn.
    assert same == [False, False, True, False]


def test_a_preempted_request_goes_on_where_it_was() -> None:
    prompts, rules = [PROMPT, PROMPT[1:]], [RULE, replace(RULE, seed=6)]
    for speculative in ("", "dspark"):
        with LLM(settings("steady_mtp", speculative=speculative)) as llm:
            wide = llm.generate(prompts, max_tokens=20, sampling=rules)
        narrow_settings = settings("steady_mtp", speculative=speculative, num_kv_blocks=5)
        with LLM(narrow_settings) as llm:
            narrow = llm.generate(prompts, max_tokens=20, sampling=rules)
        assert sum(one.counters.get("num_preemptions", 0) for one in narrow) > 0
        assert [one.token_ids for one in narrow] == [one.token_ids for one in wide]


def test_top_k_runs_behind_the_op_table_and_draws_what_whole_rows_give() -> None:
    counted: Counter[str] = Counter()
    with LLM(settings("steady_mtp")) as llm:
        executor: Any = llm.executor
        executor.worker.ops.observer = lambda op, *_: counted.update([op])
        (few,) = llm.generate([PROMPT], max_tokens=6, sampling=RULE)
        assert (counted["vocab_topk"], counted["vocab_argmax"]) == (6, 6)
        (whole,) = llm.generate([PROMPT], max_tokens=6, sampling=RULE, want_logits=True)
        assert whole.logits is not None
        (greedy,) = llm.generate([PROMPT], max_tokens=6)
        assert counted["vocab_topk"] == 12
    assert few.token_ids == whole.token_ids != greedy.token_ids
    for token, row in zip(whole.token_ids, whole.logits, strict=True):
        assert (row > row[token]).sum() < RULE.top_k


@pytest.mark.parametrize("speculative", ["", "dspark"])
def test_two_ranks_draw_what_one_draws(speculative: str) -> None:
    rules = [RULE, SamplingRule(temperature=1.0, seed=8), SamplingRule()]
    prompts = [PROMPT, PROMPT[1:], PROMPT[2:]]
    one, two = (
        LLM.in_one_process(settings("steady_mtp", cp=cp, speculative=speculative)).generate(
            prompts, max_tokens=6, sampling=rules
        )
        for cp in (1, 2)
    )
    assert [item.token_ids for item in two] == [item.token_ids for item in one]


def test_batches_of_their_own_draw_what_one_batch_draws() -> None:
    prompts, rules = _prompts(), _rules()
    one, four = (
        LLM.in_one_process(settings("steady_mtp", prefill="attention", **ranks)).generate(
            prompts, max_tokens=6, sampling=rules
        )
        for ranks in ({}, {"cp": 2, "ep": 4})
    )
    assert [item.token_ids for item in four] == [item.token_ids for item in one]


def test_a_temperature_near_zero_says_what_greedy_says() -> None:
    cold = SamplingRule(temperature=1e-9, seed=3)
    for speculative in ("", "dspark"):
        with LLM(settings("steady_mtp", speculative=speculative)) as llm:
            (greedy,) = llm.generate([PROMPT], max_tokens=12)
            (sampled,) = llm.generate([PROMPT], max_tokens=12, sampling=cold)
        assert sampled.token_ids == greedy.token_ids


def test_the_end_token_is_held_back_in_accepted_blocks_too() -> None:
    with LLM(settings("steady_mtp", speculative="dspark")) as llm:
        (greedy,) = llm.generate([PROMPT], max_tokens=12)
        end = greedy.token_ids[4]
        llm.scheduler.schedulers[0]._eos_token_id = end
        object.__setattr__(llm.config, "eos_token_id", end)
        (ended,) = llm.generate([PROMPT], max_tokens=12, ignore_eos=False)
        held = SamplingRule(min_tokens=9)
        (longer,) = llm.generate([PROMPT], max_tokens=12, ignore_eos=False, sampling=held)
    assert len(ended.token_ids) <= 5
    assert end not in longer.token_ids[:9]
    assert len(longer.token_ids) >= 10


def test_rules_that_do_not_match_the_prompts_are_refused() -> None:
    with LLM(settings("steady_mtp")) as llm, pytest.raises(UsageError, match="2 sampling rules"):
        llm.generate([PROMPT], max_tokens=1, sampling=[RULE, RULE])


def _exact_distribution() -> dict[tuple[int, ...], float]:
    """Probability of every continuation, from teacher-forced logits and plain arithmetic."""
    with LLM(settings("steady_mtp")) as llm:

        def best(prefix: tuple[int, ...]) -> dict[int, float]:
            row = llm.score([*PROMPT, *prefix])[-1]
            ids = sorted(range(len(row)), key=lambda token: (-row[token], token))[: RULE.top_k]
            weights = {token: float(np.exp(row[token] / RULE.temperature)) for token in ids}
            total = sum(weights.values())
            return {token: weight / total for token, weight in weights.items()}

        known = {(): 1.0}
        for _ in range(NUM_TOKENS):
            known = {
                (*prefix, token): mass * share
                for prefix, mass in known.items()
                for token, share in best(prefix).items()
            }
    return known


def _continuations(speculative: str, num_draws: int) -> tuple[Counter[tuple[int, ...]], float]:
    """How often each continuation came, and the share of drafts that were accepted."""
    found: Counter[tuple[int, ...]] = Counter()
    accepted = drafted = 0.0
    with LLM(settings("steady_mtp", speculative=speculative)) as llm:
        width = llm.limits.max_num_seqs
        for first in range(0, num_draws, width):
            rules = [replace(RULE, seed=1000 + first + place) for place in range(width)]
            for one in llm.generate([PROMPT] * width, max_tokens=NUM_TOKENS, sampling=rules):
                found[one.token_ids] += 1
                accepted += one.counters.get("num_accepted_tokens", 0)
                drafted += one.counters.get("num_draft_tokens", 0)
    return found, accepted / drafted if drafted else 0.0


def _chi_square(found: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    if not set(found) <= set(exact):
        return float("inf")  # what has no probability came
    total = found.total()
    return sum((found[key] - total * mass) ** 2 / (total * mass) for key, mass in exact.items())


# 27 continuations: upper 0.1 % point of chi-square with 26 degrees of freedom.
LIMIT = 54.05


@pytest.mark.parametrize(
    "num_draws", [320, pytest.param(1600, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_speculative_sampling_follows_the_targets_distribution(num_draws: int) -> None:
    exact = _exact_distribution()
    assert len(exact) == len(list(product(range(RULE.top_k), repeat=NUM_TOKENS)))
    assert sum(exact.values()) == pytest.approx(1)
    assert min(exact.values()) * num_draws > 3
    found, accepted = _continuations("dspark", num_draws)
    # Both must happen for the test to say anything.
    assert 0.02 < accepted < 0.98
    assert _chi_square(found, exact) < LIMIT


def test_drafts_accepted_unseen_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TokenChooser._point

    def careless(chooser: TokenChooser, purpose: int, ahead: int = 0) -> float:
        return 0.0 if purpose == _ACCEPT else right(chooser, purpose, ahead)

    monkeypatch.setattr(TokenChooser, "_point", careless)
    # A draft the target gives no chance is never accepted; all others now are.
    found, accepted = _continuations("dspark", 320)
    assert accepted > 0.02
    assert _chi_square(found, _exact_distribution()) > LIMIT
