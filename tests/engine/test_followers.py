"""Who samples: the first rank of a batch alone, or all ranks where tokens are compared."""

from __future__ import annotations

import pytest
import torch

from engine import LLM
from engine.parallel.executor import LockstepExecutor, agreed_outputs
from engine.parallel.topology import Topology
from engine.sampler import Greedy, Sampled
from engine.worker import StepOutput
from harness.core.errors import RankError
from tests.engine.oracle import settings


@pytest.fixture
def sampling_ranks(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers, within their batches, of the ranks that turned logits into ids."""
    seen: set[int] = set()
    staged, from_logits = Greedy.from_shards, Greedy.from_logits

    def shards(self: Greedy, local: torch.Tensor, hidden: torch.Tensor) -> Sampled:
        seen.add(self._runtime.group.rank)
        return staged(self, local, hidden)

    def logits(self: Greedy, rows: torch.Tensor) -> tuple[int, ...]:
        seen.add(self._runtime.group.rank)
        return from_logits(self, rows)

    monkeypatch.setattr(Greedy, "from_shards", shards)
    monkeypatch.setattr(Greedy, "from_logits", logits)
    return seen


def test_followers_skip_the_sampler_and_the_ids_are_those_of_one_rank(
    sampling_ranks: set[int],
) -> None:
    with LLM(settings()) as llm:
        (expected,) = llm.generate([[5, 6, 7]], max_tokens=3)
    sampling_ranks.clear()
    with LLM.in_one_process(settings(cp=4)) as llm:
        (found,) = llm.generate([[5, 6, 7]], max_tokens=3)
    assert sampling_ranks == {0}
    assert found.token_ids == expected.token_ids


def test_every_rank_samples_where_logits_are_compared(sampling_ranks: set[int]) -> None:
    with LLM.in_one_process(settings(cp=4)) as llm:
        llm.generate([[5, 6, 7]], max_tokens=2, want_logits=True)
        assert isinstance(llm.executor, LockstepExecutor)
    assert sampling_ranks == {0, 1, 2, 3}


def _outputs(*ids: int) -> dict[int, StepOutput]:
    return {rank: StepOutput((token,)) for rank, token in enumerate(ids)}


def test_only_batches_that_are_compared_need_their_followers() -> None:
    topology = Topology(2, 2)
    followers_of_the_second = {0: StepOutput((4,)), 2: StepOutput((5,)), 3: StepOutput((5,))}
    first, second = agreed_outputs(followers_of_the_second, topology, (False, True))
    assert (first.token_ids, second.token_ids) == ((4,), (5,))


def test_a_rank_that_differs_is_named_where_its_batch_is_compared() -> None:
    topology = Topology(2, 2)
    outputs = _outputs(4, 4, 5, 6)
    with pytest.raises(RankError, match=r"rank 3 sampled \(6,\), rank 2 sampled \(5,\)") as caught:
        agreed_outputs(outputs, topology, (True, True))
    assert caught.value.detail == "RANK_DESYNC"
    assert len(agreed_outputs(outputs, topology, (True, False))) == 2
