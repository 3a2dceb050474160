"""The expert exchange in one process and over gloo, against every expert applied everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.core.errors import UsageError
from references.deep_ep import ElasticBuffer
from tests.references.draws import normal
from tests.references.gloo_ranks import assert_both_end_well, in_group

NUM_EXPERTS, HIDDEN, TOP_K, TOKENS = 6, 16, 2, 5


def routed(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, expert ids (some -1) and weights of a rank; rank 1 has fewer tokens."""
    generator = torch.Generator().manual_seed(100 + rank)
    count = TOKENS - 2 * rank
    x = normal(rank, count, HIDDEN)
    ids = torch.stack(
        [torch.randperm(NUM_EXPERTS, generator=generator)[:TOP_K] for _ in range(count)]
    )
    ids[0, 1] = -1
    return x, ids, torch.rand(count, TOP_K, generator=generator)


def expert(index: int, x: torch.Tensor) -> torch.Tensor:
    """A different map per expert: a permutation of the channels and a power of two."""
    return x.float().roll(index, dims=-1) * 2.0**index


def golden(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape)
    for token in range(len(x)):
        for slot in range(TOP_K):
            if ids[token, slot] >= 0:
                total[token] += weights[token, slot] * expert(int(ids[token, slot]), x[token])
    return total


def exchange(buffer: ElasticBuffer, rank: int, expanded: bool) -> None:
    """Dispatch, apply the local experts, combine, and compare."""
    x, ids, weights = routed(rank)
    local = NUM_EXPERTS // buffer.num_ranks
    first = buffer.rank * local
    received, experts, shares, handle, event = buffer.dispatch(
        x, ids, weights, NUM_EXPERTS, do_expand=expanded, expert_alignment=4 if expanded else 1
    )
    event.current_stream_wait()
    assert isinstance(received, torch.Tensor)
    out = torch.zeros(received.shape)
    if expanded:
        for row in range(len(received)):
            if handle.source_rank[row] >= 0:
                out[row] = shares[row] * expert(first + int(experts[row]), received[row])
        ends = handle.psum_num_recv_tokens_per_expert.tolist()
        assert all(end % 4 == 0 for end in ends)
        assert ends[-1] == len(received)
    else:
        assert bool((experts >= 0).any(-1).all()), "only rows with a local expert arrive"
        for row in range(len(received)):
            for slot in range(TOP_K):
                if experts[row, slot] >= 0:
                    which = first + int(experts[row, slot])
                    out[row] += shares[row, slot] * expert(which, received[row])
    combined, _, _ = buffer.combine(out, handle)
    torch.testing.assert_close(combined, golden(x, ids, weights), rtol=1e-5, atol=1e-6)


def fetch(buffer: ElasticBuffer, rank: int) -> None:
    """Engram rows of every rank's block."""
    block = torch.arange(12).reshape(4, 3).to(torch.uint8) + 12 * rank
    buffer.engram_write(block, block[:, :1].float())
    rows = torch.tensor([[0, 4 * buffer.num_ranks - 1]])
    data, scale = buffer.engram_fetch(rows)()
    assert data[:, 0].tolist() == [0, 3 * (4 * buffer.num_ranks - 1)]
    assert scale is not None
    assert scale[:, 0].tolist() == data[:, 0].tolist()


@pytest.mark.parametrize("expanded", [False, True])
def test_one_process_serves_all_experts(expanded: bool) -> None:
    buffer = ElasticBuffer(None, TOKENS, HIDDEN, TOP_K)
    exchange(buffer, 0, expanded)
    fetch(buffer, 0)


def test_fp8_tokens_travel_with_their_scales() -> None:
    x, ids, weights = routed(0)
    data, scale = x.to(torch.float8_e4m3fn), torch.arange(5.0).unsqueeze(1)
    buffer = ElasticBuffer(None, TOKENS, HIDDEN, TOP_K)
    for expanded in (False, True):
        received, _, _, handle, _ = buffer.dispatch(
            (data, scale), ids, weights, NUM_EXPERTS, do_expand=expanded
        )
        assert isinstance(received, tuple)
        rows = handle.source_row
        assert torch.equal(received[0].view(torch.uint8), data[rows].view(torch.uint8))
        assert torch.equal(received[1], scale[rows])


def test_combine_adds_a_bias_and_returns_weights() -> None:
    x, ids, weights = routed(0)
    buffer = ElasticBuffer(None, TOKENS, HIDDEN, TOP_K)
    received, _, shares, handle, _ = buffer.dispatch(x, ids, weights, NUM_EXPERTS)
    assert isinstance(received, torch.Tensor)
    y, returned, _ = buffer.combine(received, handle, shares, bias=torch.ones(TOKENS, HIDDEN))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, (x.float() + 1).bfloat16())
    assert returned is not None
    torch.testing.assert_close(returned, weights * (ids >= 0))


def test_wrong_operands_are_refused() -> None:
    x, ids, weights = routed(0)
    buffer = ElasticBuffer(None, TOKENS, HIDDEN, TOP_K)
    with pytest.raises(UsageError, match="room for 4"):
        ElasticBuffer(None, 4, HIDDEN, TOP_K).dispatch(x, ids, weights, NUM_EXPERTS)
    with pytest.raises(UsageError, match="x has shape"):
        buffer.dispatch(x[:, :8], ids, weights, NUM_EXPERTS)
    with pytest.raises(UsageError, match=r"within -1\.\.2"):
        buffer.dispatch(x, ids, weights, 3)
    with pytest.raises(UsageError, match="at least 1"):
        ElasticBuffer(None, 0, HIDDEN, TOP_K)
    with pytest.raises(UsageError, match="nothing was written"):
        buffer.engram_fetch(ids)
    buffer.engram_write(torch.zeros(2, 4, dtype=torch.uint8))
    with pytest.raises(UsageError, match=r"within 0\.\.1"):
        buffer.engram_fetch(torch.tensor([[2]]))
    handle = buffer.dispatch(x, ids, weights, NUM_EXPERTS)[3]
    with pytest.raises(UsageError, match="x has shape"):
        buffer.combine(x[:2], handle)


def test_two_gloo_processes_exchange_tokens(tmp_path: Path) -> None:
    assert_both_end_well("tests.references.test_deep_ep", tmp_path)


def in_two_processes(rank: int) -> None:
    """One of two ranks."""
    buffer = ElasticBuffer(dist.group.WORLD, TOKENS, HIDDEN, TOP_K)
    for expanded in (False, True):
        exchange(buffer, rank, expanded)
    fetch(buffer, rank)


if __name__ == "__main__":
    in_group(in_two_processes)
