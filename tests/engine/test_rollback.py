"""After drafts were rejected, every cache holds what a run that never drafted holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import LLM
from engine.cache.state import CacheState
from engine.config.model import ModelConfig
from engine.schedule.choice import TokenChooser
from engine.schedule.distribution import SamplingRule
from engine.schedule.request import Request
from tests.engine.oracle import all_ids, settings

PROMPT = all_ids("steady_mtp", "exact")[:19]
NUM_TOKENS = 14


def _live(llm: LLM, request: Request) -> dict[str, torch.Tensor]:
    """Of every cache what the request's next rows may read, by position."""
    executor: Any = llm.executor
    state: CacheState = executor.worker.state
    config: ModelConfig = llm.config
    size, count = state.geometry, request.num_computed
    window = torch.arange(max(0, count - config.window), count)
    found = {
        f"ring {layer}": ring[request.slot * size.ring + window % size.ring]
        for layer, ring in enumerate(state.rings)
    }
    for owner in config.kv_sources:
        ratio = config.ratios[owner]
        per_page = size.page_size // ratio
        entry = torch.arange(count // ratio)
        rows = torch.tensor(request.pages)[entry // per_page] * per_page + entry % per_page
        found[f"entries {owner}"] = state.compressed[owner][rows]
        found[f"index keys {owner}"] = state.index_keys[owner][rows]
        if owner in state.tails:
            rest = torch.arange(count - count % ratio, count)
            found[f"tail {owner}"] = state.tails[owner][request.slot * size.tail + rest % size.tail]
    return {name: tensor.clone() for name, tensor in found.items()}


def _request(tokens: list[int], max_tokens: int) -> Request:
    return Request(1, len(tokens), list(tokens), max_tokens, True, False)


def _script(llm: LLM, num_right: int | None, known: list[int]) -> None:
    """Drafts of which the first `num_right` are the target's own and the next is not."""
    executor: Any = llm.executor
    propose = executor.propose

    def scripted(plans: Any) -> Any:
        (plan,), (output,) = plans, propose(plans)
        first = plan.sequences[0].position + 2
        right = [*known, *[3] * 8][first : first + 5]
        drafts = tuple(
            token if place < num_right else (token + 1) % 512 for place, token in enumerate(right)
        )
        return (replace(output, token_ids=(drafts,)),)

    if num_right is not None:
        executor.propose = scripted


def _after_speculation(
    numerics: str, num_right: int | None, rule: SamplingRule | None
) -> tuple[list[int], dict[str, torch.Tensor], Request]:
    """Tokens that are computed, and the caches after at least eight generated tokens."""
    with LLM(settings("steady_mtp", numerics=numerics, speculative="dspark")) as llm:
        # Neighbours that came and went leave their numbers in rings, tails and pages.
        (plain, *_) = llm.generate([PROMPT, PROMPT[3:], PROMPT[:9]], max_tokens=NUM_TOKENS)
        _script(llm, num_right, [*PROMPT, *plain.token_ids])
        request = _request(PROMPT, NUM_TOKENS)
        if rule is not None:
            request.chooser = TokenChooser(rule, llm.config.eos_token_id)
        llm.submit(request)
        while request.num_generated < 8:
            llm.step()
        assert not request.finish_reason
        return request.tokens[: request.num_computed], _live(llm, request), request


def _without_drafts(numerics: str, tokens: list[int]) -> dict[str, torch.Tensor]:
    """The same tokens as a prompt, row by row, in fresh caches with draft rings beside."""
    chosen = settings(
        "steady_mtp", numerics=numerics, speculative="dspark", max_num_batched_tokens=1
    )
    with LLM(chosen) as llm:
        request = _request(tokens, 2)
        llm.submit(request)
        while request.num_generated < 1:
            llm.step()
        request.drafts = ()
        return _live(llm, request)


SAMPLED = SamplingRule(temperature=1.5, top_k=4, seed=2)


@pytest.mark.parametrize(
    ("numerics", "num_right", "rule"),
    [
        pytest.param("quantised", 0, None, id="all-rejected"),
        pytest.param("quantised", 1, None, id="one-accepted"),
        pytest.param("quantised", 2, None, id="two-accepted"),
        pytest.param("quantised", None, None, id="own-drafts"),
        pytest.param("exact", None, None, id="own-drafts-exact"),
        pytest.param("quantised", None, SAMPLED, id="sampled"),
    ],
)
def test_rejected_drafts_leave_no_trace_in_any_cache(
    numerics: str, num_right: int | None, rule: SamplingRule | None
) -> None:
    tokens, found, request = _after_speculation(numerics, num_right, rule)
    acceptance = request.acceptance
    accepted = sum(acceptance.accepted_by_place)
    assert accepted < acceptance.num_draft_tokens, "nothing was rejected"
    if num_right is not None:
        assert accepted == num_right * acceptance.num_drafts
    expected = _without_drafts(numerics, tokens)
    assert found.keys() == expected.keys()
    num_layers = sum(name.startswith("ring") for name in found)
    assert num_layers > 8  # backbone layers and draft stages
    for name, tensor in found.items():
        difference = (tensor - expected[name]).abs().max() if tensor.numel() else 0.0
        assert difference <= (1e-9 if numerics == "exact" else 0.0), name


def test_a_row_that_was_not_rolled_back_would_be_seen() -> None:
    """The last draft's row in place of the kept one: every kind of cache differs."""
    tokens, found, _ = _after_speculation("quantised", 0, None)
    expected = _without_drafts("quantised", [*tokens[:-1], (tokens[-1] + 1) % 512])
    differing = {name.rsplit(" ", 1)[0] for name in found if not found[name].equal(expected[name])}
    kinds = {name.rsplit(" ", 1)[0] for name, tensor in found.items() if tensor.numel()}
    assert differing == kinds
