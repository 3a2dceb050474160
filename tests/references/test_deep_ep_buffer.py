"""deep_ep's Buffer, ring and sessions, in one process and over gloo, against plain loops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.core.errors import UsageError
from references.deep_ep import Buffer, ElasticBuffer
from tests.references.draws import normal
from tests.references.gloo_ranks import assert_both_end_well, in_group
from tests.references.test_deep_ep import NUM_EXPERTS, TOKENS, TOP_K, expert, golden, routed

HIDDEN = 128


def wide(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of 128 channels, ids and weights of a rank."""
    _, ids, weights = routed(rank)
    return normal(rank + 20, len(ids), HIDDEN), ids, weights


def exchange(buffer: Buffer, rank: int) -> None:
    """Layout, dispatch, the local experts, combine, against every expert applied at home."""
    x, ids, weights = wide(rank)
    local = NUM_EXPERTS // buffer.group_size
    per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
        ids, NUM_EXPERTS
    )
    event.current_stream_wait()
    assert per_rdma_rank is None
    for e in range(NUM_EXPERTS):
        assert int(per_expert[e]) == sum(e in row for row in ids.tolist())
    for r in range(buffer.group_size):
        mine = [any(e >= 0 and e // local == r for e in row) for row in ids.tolist()]
        assert in_rank[:, r].tolist() == mine
        assert int(per_rank[r]) == sum(mine)
    received, experts, shares, rows, handle, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights, expert_alignment=4,
    )  # fmt: skip
    assert isinstance(received, torch.Tensor)
    assert experts is not None
    assert shares is not None
    assert rows is not None
    assert handle is not None
    counted = [-(-int((experts == e).sum()) // 4) * 4 for e in range(local)]
    assert rows == counted
    out = torch.zeros(received.shape)
    first = buffer.rank * local
    for row in range(len(received)):
        for slot in range(TOP_K):
            if experts[row, slot] >= 0:
                out[row] += shares[row, slot] * expert(
                    first + int(experts[row, slot]), received[row]
                )
    bias = torch.ones(len(x), HIDDEN)
    y, returned, _ = buffer.combine(out, handle, shares, bias=(bias, bias))
    torch.testing.assert_close(y, golden(x, ids, weights) + 2, rtol=1e-5, atol=1e-5)
    assert returned is not None
    torch.testing.assert_close(returned, weights * (ids >= 0))
    again, *nothing, _ = buffer.dispatch(x * 2, handle=handle)
    assert nothing == [None] * 4
    assert isinstance(again, torch.Tensor)
    assert torch.equal(again, received * 2)


def low_latency(buffer: Buffer, rank: int, use_fp8: bool, hooked: bool) -> None:
    """Rows by expert, then weighted back at home."""
    x, ids, weights = wide(rank)
    local, first = (
        NUM_EXPERTS // buffer.group_size,
        buffer.rank * (NUM_EXPERTS // buffer.group_size),
    )
    stats = torch.full((local,), 10, dtype=torch.int32)
    rows, count, handle, _, hook = buffer.low_latency_dispatch(
        x, ids, TOKENS + 1, NUM_EXPERTS, stats, use_fp8=use_fp8, round_scale=True,
        return_recv_hook=hooked,
    )  # fmt: skip
    data = rows[0] if isinstance(rows, tuple) else rows
    assert data.shape == (local, buffer.group_size * (TOKENS + 1), HIDDEN)
    if hooked:
        assert hook is not None
        assert not data.float().any(), "nothing has arrived before the hook"
        hook()
    assert torch.equal(stats - 10, count)
    values = data.float()
    if isinstance(rows, tuple):
        assert data.dtype == torch.float8_e4m3fn
        values = values * rows[1]
    everyone = [wide(r) for r in range(buffer.group_size)]
    out = torch.zeros(values.shape, dtype=torch.bfloat16)
    for e in range(local):
        wanted = [
            tokens[t]
            for tokens, chosen, _ in everyone
            for t in range(len(tokens))
            if first + e in chosen[t].tolist()
        ]
        assert int(count[e]) == len(wanted)
        for place, token in enumerate(wanted):
            torch.testing.assert_close(
                values[e, place], token.float(), rtol=2**-4 if use_fp8 else 0, atol=1e-2 * use_fp8
            )
            out[e, place] = expert(first + e, token).bfloat16()
        assert not values[e, len(wanted) :].any()
    y = torch.full((len(x), HIDDEN), -1.0, dtype=torch.bfloat16)
    given, _, wait = buffer.low_latency_combine(
        out, ids, weights, handle, out=y, return_recv_hook=hooked
    )
    assert given is y
    if hooked:
        assert wait is not None
        assert bool((y == -1).all()), "nothing is combined before the hook"
        wait()
    torch.testing.assert_close(y.float(), golden(x, ids, weights), rtol=2**-7, atol=2**-6)


def ring_and_session(buffer: ElasticBuffer, rank: int) -> None:
    """A token goes round the ring; both ranks' tensors are gathered."""
    ranks = buffer.num_ranks
    buffer.pp_set_config(64, 2)
    for step in range(3):
        mine = torch.full((4,), float(10 * step + rank))
        buffer.pp_send(mine, (rank + 1) % ranks)
        mine.zero_()  # what was sent is not this memory any more
        got = torch.empty(4)
        buffer.pp_recv(got, (rank - 1) % ranks)
        assert got.tolist() == [10.0 * step + (rank - 1) % ranks] * 4
    buffer.agrs_set_config(4096, 2)
    with buffer.agrs_new_session():
        slot = buffer.agrs_get_inplace_tensor((3, 2), torch.bfloat16)
        assert isinstance(slot, torch.Tensor)
        slot.fill_(rank + 1)
        ids = torch.arange(4) + 100 * rank
        (values, numbers), hook = buffer.all_gather((slot, ids))
        assert not values.any()
        hook()
        for r in range(ranks):
            assert values[r].tolist() == [[r + 1.0] * 2] * 3
            assert numbers[r].tolist() == [100 * r + i for i in range(4)]
    with buffer.agrs_new_session(enabled=False), pytest.raises(UsageError, match="no session"):
        buffer.all_gather(ids)


def test_one_process_serves_all_experts() -> None:
    exchange(Buffer(None), 0)
    ring_and_session(ElasticBuffer(None, TOKENS, HIDDEN, TOP_K), 0)


@pytest.mark.parametrize("use_fp8", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
def test_low_latency_rows_come_by_expert(use_fp8: bool, hooked: bool) -> None:
    low_latency(Buffer(None, low_latency_mode=True), 0, use_fp8, hooked)


def test_worst_case_rows_are_filled_up_and_combine_to_nothing() -> None:
    x, ids, weights = wide(0)
    buffer = Buffer(None)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, NUM_EXPERTS)
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
        "topk_idx": ids,
        "topk_weights": weights,
    }
    received, experts, _, rows, handle, _ = buffer.dispatch(x, **layout, num_worst_tokens=9)
    assert isinstance(received, torch.Tensor)
    assert experts is not None
    assert handle is not None
    assert len(received) == 9
    assert rows == []
    assert experts[TOKENS:].tolist() == [[-1] * TOP_K] * 4
    y, _, _ = buffer.combine(torch.ones(9, HIDDEN), handle)
    assert bool((y == 1).all())
    with pytest.raises(UsageError, match="room for 4"):
        buffer.dispatch(x, **layout, num_worst_tokens=4)


def test_fp8_tokens_travel_with_their_scales() -> None:
    x, ids, weights = wide(0)
    data, scale = x.to(torch.float8_e4m3fn), torch.arange(float(TOKENS)).unsqueeze(1)
    buffer = Buffer(None)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, NUM_EXPERTS)
    received, *_, handle, _ = buffer.dispatch(
        (data, scale), num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights,
    )  # fmt: skip
    assert isinstance(received, tuple)
    rows = handle.source_row
    assert torch.equal(received[0].view(torch.uint8), data[rows].view(torch.uint8))
    assert torch.equal(received[1], scale[rows])


def test_what_the_legacy_buffer_tells_and_refuses() -> None:
    x, ids, weights = wide(0)
    buffer = Buffer(None)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, NUM_EXPERTS)
    assert Buffer.get_low_latency_rdma_size_hint(4, HIDDEN, 2, 6) == 2 * 3 * 2 * 4 * HIDDEN
    Buffer.capture().current_stream_wait()
    before = Buffer.num_sms
    Buffer.set_num_sms(24)
    assert Buffer.num_sms == 24
    Buffer.set_num_sms(before)
    Buffer(None, explicitly_destroy=True).destroy()
    layout = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }
    with pytest.raises(UsageError, match="explicitly_destroy"):
        buffer.destroy()
    with pytest.raises(UsageError, match="multiple of 2"):
        Buffer.set_num_sms(3)
    with pytest.raises(UsageError, match=r"within -1\.\.2"):
        buffer.get_dispatch_layout(ids, 3)
    with pytest.raises(UsageError, match="pass a handle"):
        buffer.dispatch(x, topk_idx=ids)
    with pytest.raises(UsageError, match="is_token_in_rank is not what"):
        buffer.dispatch(
            x, **layout | {"is_token_in_rank": ~in_rank}, topk_idx=ids, topk_weights=weights
        )
    with pytest.raises(UsageError, match="topk_weights has shape"):
        buffer.dispatch(x, **layout, topk_idx=ids, topk_weights=weights[:, :1])
    handle = buffer.dispatch(x, **layout, topk_idx=ids, topk_weights=weights)[4]
    assert handle is not None
    with pytest.raises(UsageError, match="pass no topk_idx"):
        buffer.dispatch(x, handle=handle, topk_idx=ids)
    with pytest.raises(UsageError, match="another number of tokens"):
        buffer.dispatch(x[:2], handle=handle)
    with pytest.raises(UsageError, match="x has shape"):
        buffer.combine(x[:2], handle)


def test_what_low_latency_refuses() -> None:
    x, ids, weights = wide(0)
    buffer = Buffer(None)
    buffer.clean_low_latency_buffer(4, HIDDEN, NUM_EXPERTS)
    with pytest.raises(UsageError, match="at least 1"):
        buffer.clean_low_latency_buffer(0, HIDDEN, NUM_EXPERTS)
    with pytest.raises(UsageError, match="room for 2"):
        buffer.low_latency_dispatch(x, ids, 2, NUM_EXPERTS)
    with pytest.raises(UsageError, match="pass bfloat16"):
        buffer.low_latency_dispatch(x.float(), ids, TOKENS, NUM_EXPERTS)
    with pytest.raises(UsageError, match="multiple of 128"):
        buffer.low_latency_dispatch(x[:, :64], ids, TOKENS, NUM_EXPERTS)
    with pytest.raises(UsageError, match="use_ue8m0=False"):
        buffer.low_latency_dispatch(x, ids, TOKENS, NUM_EXPERTS, use_ue8m0=True)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, TOKENS, NUM_EXPERTS, use_fp8=False)
    assert isinstance(rows, torch.Tensor)
    assert buffer.get_next_low_latency_combine_buffer(handle).shape == rows.shape
    with pytest.raises(UsageError, match="use_logfmt=False"):
        buffer.low_latency_combine(rows, ids, weights, handle, use_logfmt=True)
    with pytest.raises(UsageError, match="x has shape"):
        buffer.low_latency_combine(rows[:, :3], ids, weights, handle)
    with pytest.raises(UsageError, match="out has shape"):
        buffer.low_latency_combine(rows, ids, weights, handle, out=x[:2])


def test_what_the_ring_and_a_session_refuse() -> None:
    buffer = ElasticBuffer(None, TOKENS, HIDDEN, TOP_K)
    t = torch.zeros(4)
    with pytest.raises(UsageError, match="call pp_set_config first"):
        buffer.pp_send(t, 0)
    with pytest.raises(UsageError, match="call agrs_set_config first"):
        buffer.create_agrs_session()
    buffer.pp_set_config(16, 1)
    with pytest.raises(UsageError, match="nothing was sent"):
        buffer.pp_recv(t, 0)
    with pytest.raises(UsageError, match="no neighbour"):
        buffer.pp_send(t, 1)
    with pytest.raises(UsageError, match="20 bytes, at most 16"):
        buffer.pp_send(torch.zeros(5), 0)
    with pytest.raises(UsageError, match="contiguous"):
        buffer.pp_send(torch.zeros(2, 2).t(), 0)
    buffer.pp_send(t, 0)
    with pytest.raises(UsageError, match="1 tensors wait"):
        buffer.pp_send(t, 0)
    with pytest.raises(UsageError, match="sent and not received"):
        buffer.pp_set_config(16, 1)
    with pytest.raises(UsageError, match=r"\(4,\) was sent"):
        buffer.pp_recv(torch.zeros(2), 0)
    buffer.agrs_set_config(64, 1)
    with pytest.raises(UsageError, match="no session is open"):
        buffer.agrs_get_inplace_tensor((1,), torch.float32)
    with buffer.agrs_new_session():
        with pytest.raises(UsageError, match="a session is open"):
            buffer.create_agrs_session()
        with pytest.raises(UsageError, match="the session has 64 left"):
            buffer.agrs_get_inplace_tensor((17,), torch.float32)
        first, second = buffer.agrs_get_inplace_tensor(((2,), (3,)), torch.float32)
        assert (first.shape, second.shape) == ((2,), (3,))
        buffer.all_gather(t)
        with pytest.raises(UsageError, match="a session has 1 all-gathers"):
            buffer.all_gather(t)
    with pytest.raises(UsageError, match="no session is open"):
        buffer.destroy_agrs_session()


def test_two_gloo_processes_exchange_tokens(tmp_path: Path) -> None:
    assert_both_end_well("tests.references.test_deep_ep_buffer", tmp_path)


def in_two_processes(rank: int) -> None:
    """One of two ranks."""
    buffer = Buffer(dist.group.WORLD)
    exchange(buffer, rank)
    for use_fp8 in (False, True):
        low_latency(buffer, rank, use_fp8, hooked=use_fp8)
    ring_and_session(ElasticBuffer(dist.group.WORLD, TOKENS, HIDDEN, TOP_K), rank)


if __name__ == "__main__":
    in_group(in_two_processes)
