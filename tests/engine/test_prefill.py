"""Prefill attention equals prompt-as-decode, in fewer launches (port.md R26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine import LLM
from engine.config.limits import resolve_limits
from engine.config.parse import parse_model_config
from engine.model.attend import visibility
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import UsageError
from tests.engine.oracle import all_ids, directory, settings

BOUNDS = {"exact": 1e-9, "quantised": 0.0}


def _prompts() -> list[list[int]]:
    ids = all_ids("long", "exact")
    return [ids[:1], ids[5:13], ids[3:38], ids[10:26], ids[20:37]]


def _generated(numerics: str, prompts: list[list[int]], **changes: Any) -> list[Generation]:
    with LLM(settings("long", numerics=numerics, **changes)) as llm:
        return llm.generate(prompts, max_tokens=4, want_logits=True)


def _difference(one: Generation, other: Generation) -> float:
    assert one.logits is not None
    assert other.logits is not None
    return float(np.abs(one.logits - other.logits).max())


@pytest.mark.parametrize("name", ["steady_mtp", "long", "stress"])
@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_every_row_of_a_prompt_has_the_logits_of_the_decode_path(name: str, numerics: str) -> None:
    ids = all_ids(name, "exact")[:44]
    with LLM(settings(name, numerics=numerics)) as llm:
        expected = llm.score(ids)
    assert np.isfinite(expected).all()
    # One shot; chunks that end within a page and a group; a bucket's whole width.
    for chunk in (0, 5, 16, 31):
        chosen = settings(
            name, numerics=numerics, prefill="attention", max_num_batched_tokens=chunk
        )
        with LLM(chosen) as llm:
            assert np.abs(llm.score(ids) - expected).max() <= BOUNDS[numerics], chunk


@pytest.mark.parametrize("numerics", ["exact", "quantised"])
def test_prompts_that_share_steps_say_what_each_says_alone(numerics: str) -> None:
    prompts = _prompts()
    as_decode = _generated(numerics, prompts)
    together = _generated(numerics, prompts, prefill="attention", max_num_batched_tokens=24)
    alone = [_generated(numerics, [prompt], prefill="attention")[0] for prompt in prompts]
    for expected, one, other in zip(as_decode, together, alone, strict=True):
        assert one.token_ids == other.token_ids == expected.token_ids
        assert _difference(one, expected) <= BOUNDS[numerics]
        assert _difference(other, expected) <= BOUNDS[numerics]


def test_two_ranks_prefill_as_one_does() -> None:
    prompts = _prompts()[1:4]
    (one, two) = (
        LLM.in_one_process(settings("long", cp=cp, prefill="attention")).generate(
            prompts, max_tokens=3, want_logits=True
        )
        for cp in (1, 2)
    )
    for alone, sharded in zip(one, two, strict=True):
        assert sharded.token_ids == alone.token_ids
        assert _difference(sharded, alone) <= 1e-9


def test_a_chunk_of_48_rows_is_one_step_and_a_third_of_the_launches() -> None:
    prompt = all_ids("long", "exact")[:48]
    (as_decode,) = _generated("quantised", [prompt])
    (attention,) = _generated("quantised", [prompt], prefill="attention")
    assert (as_decode.num_prefill_steps, attention.num_prefill_steps) == (3, 1)
    launches = attention.counters["prefill_launches"]
    # What decode steps of one row launch, a step of a whole prompt launches too.
    assert launches == attention.counters["launches"]
    # Two of three steps have no row to choose a token from: no final norm, head and argmax.
    assert as_decode.counters["prefill_launches"] == 3 * launches - 2 * 3
    assert attention.steps[0].path == "prefill"
    assert (attention.steps[0].num_rows, attention.steps[0].padded_rows) == (48, 64)
    assert {step.path for step in attention.steps[1:]} == {"decode"}
    assert {step.path for step in as_decode.steps} == {"decode"}


def test_each_layer_makes_one_prefill_call_and_no_gathering_one() -> None:
    counted: Counter[tuple[str, int]] = Counter()

    def observe(op: str, arguments: tuple[Any, ...], _: Any) -> None:
        if op.endswith("_attention"):
            counted[op, len(arguments[0])] += 1

    with LLM(settings("long", prefill="attention")) as llm:
        executor: Any = llm.executor
        executor.worker.ops.observer = observe
        llm.generate([all_ids("long", "exact")[:20]], max_tokens=3)
        num_layers = llm.config.num_layers
    assert counted == {
        ("prefill_attention", 32): num_layers,
        ("sparse_attention", 1): 2 * num_layers,
    }


def test_prompt_steps_and_decode_steps_take_turns() -> None:
    """A decode waits for one prefill step, however many prompts there are."""
    prompts = [[3 + place] * 32 for place in range(4)]
    with LLM(settings("long", prefill="attention", max_num_batched_tokens=16)) as llm:
        first = llm._request([7, 8], max_tokens=6, ignore_eos=True, want_logits=False)
        llm.submit(first)
        llm.step()
        for prompt in prompts:
            llm.submit(llm._request(prompt, max_tokens=2, ignore_eos=True, want_logits=False))
        paths = []
        while llm.scheduler.has_work:
            before = first.num_generated
            llm.step()
            paths.append("decode" if first.num_generated > before else "prefill")
    assert paths[:10] == ["decode", "prefill"] * 5


def test_speculation_after_a_prefill_step_changes_no_token() -> None:
    prompt = all_ids("steady_mtp", "exact")[:30]
    with LLM(settings("steady_mtp", numerics="quantised")) as llm:
        (plain,) = llm.generate([prompt], max_tokens=10, want_logits=True)
    chosen = settings("steady_mtp", numerics="quantised", prefill="attention", speculative="dspark")
    with LLM(chosen) as llm:
        (other,) = llm.generate([prompt], max_tokens=10, want_logits=True)
    assert other.token_ids == plain.token_ids
    assert _difference(other, plain) == 0.0
    assert other.counters["num_accepted_tokens"] > 0


def _scored(ids: list[int], poison: float | None, rows: int) -> npt.NDArray[np.floating]:
    """Logits with padding rows, caches nobody has written and scratch holding `poison`."""

    def fill(_: int, streams: torch.Tensor) -> torch.Tensor:
        assert len(streams) == rows
        streams = streams.clone()
        streams[len(ids) :] = poison
        return streams

    with LLM(settings("long", numerics="quantised", prefill="attention")) as llm:
        if poison is not None:
            executor: Any = llm.executor
            executor.worker.model.stream_hook = fill
            state = executor.worker.state
            for pool in (*state.rings, *state.compressed.values(), *state.index_keys.values()):
                pool.fill_(poison)
        return llm.score(ids)


@pytest.mark.parametrize("poison", [float("nan"), 1e30])
def test_poisoned_padding_and_caches_change_no_real_row(poison: float) -> None:
    ids = all_ids("long", "exact")[:21]
    clean = _scored(ids, None, 32)
    assert np.isfinite(clean).all()
    assert np.array_equal(_scored(ids, poison, 32), clean)


def test_a_mask_opens_exactly_the_rows_of_the_indices() -> None:
    indices = torch.tensor([[2, 0, -1], [-1, -1, -1], [1, 1, 3]])
    expected = [[True, False, True, False], [False] * 4, [False, True, False, True]]
    assert visibility(indices, 4).tolist() == expected


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda mask: mask.roll(1, 1), id="keys-shifted"),
        pytest.param(lambda mask: mask.roll(1, 0), id="rows-shifted"),
        pytest.param(lambda mask: mask & (mask.cumsum(1) > 1), id="first-key-lost"),
        pytest.param(lambda mask: mask | mask.roll(-1, 0), id="a-key-of-the-next-token"),
    ],
)
def test_a_wrong_mask_would_be_noticed(
    fault: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = all_ids("long", "exact")[:44]
    with LLM(settings("long")) as llm:
        expected = llm.score(ids)
    monkeypatch.setattr("engine.model.attend.visibility", lambda *shape: fault(visibility(*shape)))
    with LLM(settings("long", prefill="attention")) as llm:
        assert np.abs(llm.score(ids) - expected).max() > 1e-3


def test_prefill_buckets_double_up_to_a_whole_step() -> None:
    tiny = parse_model_config(directory("long") / "config.json")

    def buckets(**changes: Any) -> tuple[tuple[int, ...], int]:
        limits = resolve_limits(EngineSettings("x", prefill="attention", **changes), tiny)
        return limits.prefill_buckets, limits.max_num_batched_tokens

    assert buckets() == ((16, 32, 64), 64)
    assert buckets(max_num_batched_tokens=50) == ((16, 32, 50), 50)
    assert buckets(max_num_batched_tokens=5) == ((5,), 5)
    assert buckets(token_bucket=128) == ((128, 256, 512), 512)
    assert resolve_limits(EngineSettings("x"), tiny).prefill_buckets == ()


def test_an_unknown_prefill_path_is_refused() -> None:
    with pytest.raises(UsageError, match="choose 'as-decode' or 'attention'"):
        settings("long", prefill="flash")
