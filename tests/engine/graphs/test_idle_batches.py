"""A batch that has run out of work meets the others in the graphs it had while it was busy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine import LLM
from engine.parallel.executor import LockstepExecutor
from harness.core.engine_face import EngineSettings, Generation
from tests.engine.oracle import all_ids, settings

# A chunk of 16 tokens and one of 5: the first request ends while the second still runs.
_PROMPT_LENS = (2, 21)
_MAX_TOKENS = 2


def _generated(changed: EngineSettings) -> tuple[list[Generation], int]:
    """What both requests said, each in a batch of its own, and the graphs of a rank."""
    ids = all_ids("steady_mtp", "exact")
    with LLM.in_one_process(changed) as llm:
        said = llm.generate(
            [ids[:length] for length in _PROMPT_LENS], max_tokens=_MAX_TOKENS, want_logits=True
        )
        assert isinstance(llm.executor, LockstepExecutor)
        numbers = {worker.num_graphs for worker in llm.executor.workers}
        again = llm.generate([ids[:2]], max_tokens=_MAX_TOKENS, want_logits=True)
        assert {worker.num_graphs for worker in llm.executor.workers} == numbers
    return [*said, *again], max(numbers)


@pytest.mark.parametrize("moe_capacity", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_a_batch_without_work_runs_the_graphs_it_has(moe_capacity: int) -> None:
    plain = settings(numerics="quantised", ep=2, moe_capacity=moe_capacity)
    eager, no_graphs = _generated(plain)
    compiled, num_graphs = _generated(replace(plain, enforce_eager=False, compile_backend="aten"))
    assert num_graphs > no_graphs == 0
    for one, other in zip(compiled, eager, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logits is not None
        assert other.logits is not None
        assert np.array_equal(one.logits, other.logits)
    # What was written for the idle batch reaches nobody who takes its slot.
    assert compiled[2].token_ids == compiled[0].token_ids
