"""Batches of several prompts as region graphs: shared whatever the split, the bits of eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM
from engine.graphs.graph_store import CACHE_VARIABLE
from engine.graphs.region_times import kind_of_layer
from engine.model.compiled_stack import CompiledStack
from engine.parallel.executor import LockstepExecutor, SoloExecutor
from engine.worker import Worker
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import UsageError
from tests.engine.oracle import all_ids, settings

_SPLITS = ((20, 11), (9, 23), (1, 30))
"""Rows of two prompts: one token bucket of 32 each, and more entries than a row selects (8)."""


def _eager(**changes: Any) -> EngineSettings:
    return settings(**{"token_bucket": 32, "max_num_batched_tokens": 32, **changes})


def _compiled(**changes: Any) -> EngineSettings:
    return _eager(**{"enforce_eager": False, "compile_backend": "aten", **changes})


def _prompts(lens: Sequence[int]) -> list[list[int]]:
    """Different prompts: each starts at a token of its own."""
    ids = all_ids("steady_mtp", "exact")
    return [ids[start : start + length] for start, length in enumerate(lens)]


def _generated(llm: LLM, lens: Sequence[int], max_tokens: int = 2) -> list[Generation]:
    return llm.generate(_prompts(lens), max_tokens=max_tokens, want_logits=True)


def _workers(llm: LLM) -> list[Worker]:
    executor = llm.executor
    if isinstance(executor, SoloExecutor):
        return [executor.worker]
    assert isinstance(executor, LockstepExecutor)
    return executor.workers


def _difference(ones: Sequence[Generation], others: Sequence[Generation]) -> float:
    """Largest difference of any two logits; ids must be equal."""
    found = 0.0
    for one, other in zip(ones, others, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logits is not None
        assert other.logits is not None
        found = max(found, float(np.abs(one.logits - other.logits).max()))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"numerics": "exact"},
        {"numerics": "quantised", "cp": 2},
        {"numerics": "quantised", "speculative": "dspark"},
    ],
)
def test_another_split_of_the_rows_runs_the_same_graphs(changes: dict[str, Any]) -> None:
    with LLM.in_one_process(_eager(**changes)) as llm:
        eager = [_generated(llm, lens) for lens in _SPLITS]
    with LLM.in_one_process(_compiled(**changes)) as llm:
        first = _generated(llm, _SPLITS[0])
        numbers = [worker.num_graphs for worker in _workers(llm)]
        compiled = [first, *[_generated(llm, lens) for lens in _SPLITS[1:]]]
        assert [worker.num_graphs for worker in _workers(llm)] == numbers
        assert llm.facts()["num_compile_events"] == 0
        layers = {kind_of_layer(role) for role in llm.config.roles}
    for ones, others in zip(compiled, eager, strict=True):
        assert _difference(ones, others) == 0.0
    if "speculative" not in changes:
        assert numbers[0] == 2 * (len(layers) + 1), "one prompt bucket, one decode bucket"


def test_three_sequences_run_the_graphs_of_four() -> None:
    with LLM(_eager(numerics="quantised")) as llm:
        eager = [_generated(llm, (18, 9, 5)), _generated(llm, (1, 3, 12, 14))]
    with LLM(_compiled(numerics="quantised")) as llm:
        three = _generated(llm, (18, 9, 5))
        num_graphs = _workers(llm)[0].num_graphs
        four = _generated(llm, (1, 3, 12, 14))
        assert _workers(llm)[0].num_graphs == num_graphs
    assert _difference([*three, *four], [*eager[0], *eager[1]]) == 0.0


def _drafts_of_three_steps(llm: LLM) -> list[list[torch.Tensor]]:
    """Drafts and confidences of each proposal of two requests."""
    (worker,) = _workers(llm)
    for prompt in _prompts((9, 4)):
        llm.submit(llm._request(prompt, max_tokens=16, ignore_eos=True, want_logits=False))
    found = []
    for _ in range(3):
        llm.step()
        proposal = worker.last_proposal
        assert proposal is not None
        found.append([proposal.token_ids[:2], proposal.confidence[:2], proposal.logits[:2]])
    return found


def test_drafts_of_graphs_are_those_of_eager_stages() -> None:
    """A proposal writes no cache: nothing that is repeated may stand for a write."""
    ways = {"numerics": "quantised", "speculative": "dspark"}
    with LLM(_eager(**ways)) as llm:
        eager = _drafts_of_three_steps(llm)
    with LLM(_compiled(**ways)) as llm:
        compiled = _drafts_of_three_steps(llm)
    for ones, others in zip(compiled, eager, strict=True):
        assert all(map(torch.equal, ones, others))


def test_keys_of_another_sequence_reach_no_row() -> None:
    """Of two requests each says the same, whatever its neighbour's index keys are."""
    with LLM(_compiled(numerics="quantised")) as llm:
        (worker,) = _workers(llm)
        clean = _generated(llm, (14, 18), 4)
        execute, num_poisoned, watched, poison = worker.execute, 0, 0, float("nan")

        def poisoned(plan: Any) -> Any:
            nonlocal num_poisoned
            for pool in worker.state.index_keys.values():
                rows = pool.view(llm.limits.num_pages, -1, pool.shape[1])
                rows[[0, *plan.chunks[1 - watched].pages]] = poison
                num_poisoned += 1
            return execute(plan)

        worker.execute = poisoned  # type: ignore[method-assign]
        for watched, poison in ((0, float("nan")), (1, float("nan")), (0, 1e30), (1, 1e30)):  # noqa: B007
            found = _generated(llm, (14, 18), 4)
            assert _difference([found[watched]], [clean[watched]]) == 0.0
        assert num_poisoned == 4 * 4 * len(worker.state.index_keys)


def test_a_step_of_other_shapes_than_its_bucket_is_refused() -> None:
    with LLM(_compiled()) as llm:
        (worker,) = _workers(llm)
        _generated(llm, (5, 9), max_tokens=1)
        stack = worker.model._compiled
        assert isinstance(stack, CompiledStack)
        # As if the worker had forgotten that its steps are compiled.
        worker._padded_sequences = lambda _: 0  # type: ignore[method-assign]
        with pytest.raises(UsageError, match="made for steps of other shapes"):
            _generated(llm, (5, 9), max_tokens=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"numerics": "exact", "cp": 2},
        {"numerics": "exact", "speculative": "dspark"},
        {"numerics": "quantised", "ep": 2},
        {"numerics": "quantised", "prefill": "attention"},
        {"numerics": "trn2"},
    ],
)
def test_every_way_of_running_batches_shares_graphs(changes: dict[str, Any]) -> None:
    lens = (5, 20, 12, 9, 17)
    with LLM.in_one_process(_eager(**changes)) as llm:
        eager = _generated(llm, lens, 4)
    with LLM.in_one_process(_compiled(**changes)) as llm:
        compiled = _generated(llm, lens, 4)
        for worker in _workers(llm):
            assert worker.num_graphs <= sum(graphs.most for graphs in worker._graphs)
        again = _generated(llm, lens, 4)
        assert llm.facts()["num_compile_events"] == 0
    # A prefill graph keeps rows that nobody sees: its sums have more terms, all of them 0.
    bound = 0.0 if changes.get("prefill") != "attention" else 1e-9
    assert _difference(compiled, eager) <= bound
    assert _difference(again, compiled) == 0.0


@pytest.mark.slow
def test_ranks_in_processes_agree_with_eager_ranks() -> None:
    ways = {"numerics": "quantised", "cp": 2}
    with LLM(_eager(**ways)) as llm:
        eager = [_generated(llm, lens) for lens in _SPLITS]
    with LLM(_compiled(**ways)) as llm:
        compiled = [_generated(llm, lens) for lens in _SPLITS]
        assert llm.facts()["num_compile_events"] == 0
    for ones, others in zip(compiled, eager, strict=True):
        assert _difference(ones, others) == 0.0


@pytest.mark.slow
@pytest.mark.timeout(3600)  # it compiles every kind of region in two buckets
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_inductor_takes_several_prompts_to_the_order_of_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    bucket = {"token_bucket": 16, "max_num_batched_tokens": 16}
    with LLM(_eager(**bucket)) as llm:
        eager = [_generated(llm, lens, 12) for lens in ((5, 9), (11, 3))]
    with LLM(_compiled(**bucket, compile_backend="inductor")) as llm:
        compiled = [_generated(llm, lens, 12) for lens in ((5, 9), (11, 3))]
        assert llm.facts()["num_compile_events"] == 0
    for ones, others in zip(compiled, eager, strict=True):
        assert _difference(ones, others) <= 1e-9
