"""DeepEP's `Buffer`, the interface before `ElasticBuffer` (model.md §5.5), in plain torch.

Rank r of N holds experts [r * E / N, (r + 1) * E / N). `dispatch` sends a token once to each rank
that holds one of its experts, in the order of `get_dispatch_layout`; `combine` adds up what comes
back. The low-latency pair is in references.low_latency_buffer.
Buffer sizes, SM counts, streams and events steer CUDA there and change no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from references.low_latency_buffer import LowLatencyBuffer
from references.operands import (
    refuse,
    require,
    require_float,
    require_multiple,
    require_shape,
)
from references.rank_exchange import Event, local_experts

__all__ = ["Buffer", "DispatchHandle"]

Tokens = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Layout = tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, Event]
Dispatched = tuple[
    Tokens,
    torch.Tensor | None,
    torch.Tensor | None,
    list[int] | None,
    "DispatchHandle | None",
    Event,
]


@dataclass(frozen=True, slots=True)
class DispatchHandle:
    """What combine, and a dispatch over the same layout, need.

    Attributes:
        source_rank, source_row: where each received row came from, -1 for rows that fill up
            num_worst_tokens.
        is_token_in_rank: [T, ranks] of this rank's tokens.
        counts: tokens of every rank.
    """

    source_rank: torch.Tensor
    source_row: torch.Tensor
    is_token_in_rank: torch.Tensor
    counts: tuple[int, ...]


class Buffer(LowLatencyBuffer):
    """One rank's end of the exchange.

    Args:
        group: a process group, or None for one process.

    Raises:
        UsageError: a negative size.
    """

    num_sms = 20

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,  # noqa: ARG002 - queue pairs of a network card
        explicitly_destroy: bool = False,
    ) -> None:
        require(min(num_nvl_bytes, num_rdma_bytes) >= 0, "Buffer", "a size is negative")
        super().__init__(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy

    def destroy(self) -> None:
        """Nothing is held.

        Raises:
            UsageError: made without `explicitly_destroy`.
        """
        require(self.explicitly_destroy, "destroy", "pass explicitly_destroy=True to Buffer")

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """SMs of the CUDA kernels: kept, without effect.

        Raises:
            UsageError: an odd number.
        """
        require_multiple("set_num_sms", "new_num_sms", new_num_sms, 2)
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> Event:
        """An event of this moment."""
        return Event()

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Event | None = None,  # noqa: ARG002
        async_finish: bool = False,  # noqa: ARG002
        allocate_on_comm_stream: bool = False,  # noqa: ARG002
    ) -> Layout:
        """(tokens for each rank int32 [N], None, tokens for each expert int32 [E], is_token_in_rank
        bool [T, N], event) of topk_idx [T, k], -1 for none.

        Raises:
            UsageError: an expert outside 0..E-1, experts that do not divide over the ranks.
        """
        local = local_experts("get_dispatch_layout", topk_idx, num_experts, self.group_size)
        chosen = torch.zeros(len(topk_idx), num_experts + 1, dtype=torch.bool)
        chosen.scatter_(1, torch.where(topk_idx < 0, num_experts, topk_idx).long(), True)
        chosen = chosen[:, :num_experts]
        in_rank = chosen.view(-1, self.group_size, local).any(-1)
        return in_rank.sum(0).int(), None, chosen.sum(0).int(), in_rank, Event()

    def dispatch(
        self,
        x: Tokens,
        handle: DispatchHandle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,  # noqa: ARG002 - one network here
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: object = None,  # noqa: ARG002
        previous_event: Event | None = None,  # noqa: ARG002
        async_finish: bool = False,  # noqa: ARG002
        allocate_on_comm_stream: bool = False,  # noqa: ARG002
    ) -> Dispatched:
        """(received tokens, their local expert ids with -1 elsewhere, their weights, rows of each
        local expert rounded up to expert_alignment, handle, event); by rank, then by row.

        Args:
            x: [T, H] or (fp8 data, scales [T, .]).
            handle: repeat an earlier dispatch with other tokens; ids, weights, counts and handle
                come back as None.
            num_worst_tokens: fill the received rows up to this number; the list is then empty.

        Raises:
            UsageError: neither a handle nor a layout, a layout that is not topk_idx's, shapes that
                do not meet, more rows than num_worst_tokens.
        """
        op = "dispatch"
        parts = x if isinstance(x, tuple) else (x,)
        if handle is not None:
            no_ids = topk_idx is None and topk_weights is None
            require(no_ids, op, "a handle already says where tokens go: pass no topk_idx")
            same = len(parts[0]) == len(handle.is_token_in_rank)
            require(same, op, "another number of tokens than the handle's dispatch")
            received = self._received(parts, handle.source_rank, handle.source_row, handle.counts)
            return received, None, None, None, None, Event()
        if topk_idx is None or topk_weights is None or num_tokens_per_expert is None:
            return refuse(op, "pass a handle, or get_dispatch_layout's results and the routing")
        num_experts = len(num_tokens_per_expert)
        given = (num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank)
        self._require_layout(given, topk_idx, num_experts)
        require_shape(op, "x", parts[0], (len(topk_idx), parts[0].shape[-1]))
        require_shape(op, "topk_weights", topk_weights, tuple(topk_idx.shape))
        require(expert_alignment >= 1, op, f"expert_alignment is {expert_alignment}: at least 1")
        return self._dispatched(
            parts,
            topk_idx,
            topk_weights,
            is_token_in_rank,
            num_experts,
            expert_alignment,
            num_worst_tokens,
        )

    def combine(
        self,
        x: torch.Tensor,
        handle: DispatchHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: object = None,  # noqa: ARG002
        previous_event: Event | None = None,  # noqa: ARG002
        async_finish: bool = False,  # noqa: ARG002
        allocate_on_comm_stream: bool = False,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor | None, Event]:
        """(y [T, H] in x's dtype: the sum of the rows x [R, H] that ranks return, plus up to two
        biases; the weights [R, k] summed alike; event). Sums are float32, in rank order.

        Raises:
            UsageError: another number of rows than the dispatch received, a bias that differs.
        """
        op = "combine"
        require_float(op, "x", x, ndim=2)
        require_shape(op, "x", x, (len(handle.source_row), x.shape[1]))
        total = self._summed(x.float(), handle)
        for one in bias if isinstance(bias, tuple) else (bias,):
            if one is not None:
                require_shape(op, "bias", one, tuple(total.shape))
                total = total + one.float()
        weights = None
        if topk_weights is not None:
            require_shape(op, "topk_weights", topk_weights, (len(x), topk_weights.shape[-1]))
            weights = self._summed(topk_weights.float(), handle)
        return total.to(x.dtype), weights, Event()

    def _require_layout(
        self, given: Sequence[torch.Tensor | None], topk_idx: torch.Tensor, num_experts: int
    ) -> None:
        """The counts and the mask that `get_dispatch_layout` gives."""
        per_rank, _, per_expert, in_rank, _ = self.get_dispatch_layout(topk_idx, num_experts)
        names = ("num_tokens_per_rank", "num_tokens_per_expert", "is_token_in_rank")
        wanted = (per_rank, per_expert, in_rank)
        for name, found, right in zip(names, given, wanted, strict=True):
            if found is None or not torch.equal(found.to(right.dtype), right):
                refuse("dispatch", f"{name} is not what get_dispatch_layout gives for topk_idx")

    def _dispatched(
        self,
        parts: tuple[torch.Tensor, ...],
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        is_token_in_rank: torch.Tensor | None,
        num_experts: int,
        alignment: int,
        num_worst_tokens: int,
    ) -> tuple[Tokens, torch.Tensor, torch.Tensor, list[int], DispatchHandle, Event]:
        counts = self._exchange.counts(len(topk_idx))
        most = max(1, *counts)
        ids = self._exchange.gather(topk_idx.long() + 1, most) - 1  # what pads is none
        weights = self._exchange.gather(topk_weights.float(), most)
        local = num_experts // self.group_size
        own = ids - self.rank * local
        own = torch.where((own >= 0) & (own < local) & (ids >= 0), own, -1)
        rank, row = (own >= 0).any(-1).nonzero(as_tuple=True)
        sizes = torch.bincount(own[own >= 0], minlength=local)
        per_expert = (-(-sizes // alignment) * alignment).tolist()
        recv_idx = own[rank, row]
        recv_weights = weights[rank, row].masked_fill(recv_idx < 0, 0.0)
        if num_worst_tokens:
            room = num_worst_tokens - len(rank)
            require(room >= 0, "dispatch", f"{len(rank)} rows arrive, room for {num_worst_tokens}")
            rank, row = (torch.cat((one, one.new_full((room,), -1))) for one in (rank, row))
            recv_idx = torch.cat((recv_idx, recv_idx.new_full((room, recv_idx.shape[1]), -1)))
            recv_weights = torch.cat((recv_weights, recv_weights.new_zeros(room, ids.shape[2])))
            per_expert = []
        received = self._received(parts, rank, row, counts)
        assert is_token_in_rank is not None  # _require_layout has seen it
        handle = DispatchHandle(rank, row, is_token_in_rank, counts)
        return received, recv_idx, recv_weights, per_expert, handle, Event()

    def _received(
        self,
        parts: tuple[torch.Tensor, ...],
        rank: torch.Tensor,
        row: torch.Tensor,
        counts: tuple[int, ...],
    ) -> Tokens:
        taken = [self._exchange.gather(part, max(1, *counts))[rank, row] for part in parts]
        return taken[0] if len(taken) == 1 else (taken[0], taken[1])

    def _summed(self, rows: torch.Tensor, handle: DispatchHandle) -> torch.Tensor:
        most = max(1, *handle.counts)
        return self._exchange.summed_rows(
            rows, handle.source_rank, handle.source_row, handle.counts, most
        )
