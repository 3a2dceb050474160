"""DeepEP's faces over torch.distributed (gloo), or in one process (model.md §5.5).

Ranks hold equal ranges of the experts: rank r has experts [r * E / N, (r + 1) * E / N). `dispatch`
sends each token once to every rank that holds one of its experts; `combine` returns the sum over
ranks. `Buffer` is the interface before 2.0 with its low-latency layout; the ring and the sessions
of 2.1 move whole tensors. What carries the bytes is references.rank_exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from references.legacy_buffer import Buffer
from references.operands import refuse, require, require_float, require_ids, require_shape
from references.rank_exchange import Event, RankExchange, local_experts, without_rows
from references.tensor_exchange import GatherSession, PipelineRing, Shape

__all__ = ["Buffer", "EPHandle", "ElasticBuffer", "Event"]

Tokens = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class EPHandle:
    """What combine needs to send rows back.

    Attributes:
        source_rank, source_row: where each received row came from, -1 for padding rows.
        slots: which slot of the token an expanded row serves, -1 without expansion.
        counts: tokens of every rank.
        num_experts: of all ranks together.
        psum_num_recv_tokens_per_expert: expanded rows end here per local expert, aligned.
    """

    source_rank: torch.Tensor
    source_row: torch.Tensor
    slots: torch.Tensor
    counts: tuple[int, ...]
    num_experts: int
    do_expand: bool
    psum_num_recv_tokens_per_expert: torch.Tensor


class ElasticBuffer:
    """One rank's end of the exchange.

    Args:
        group: a process group, or None for one process.
        num_max_tokens_per_rank: the largest number of tokens any rank dispatches.
        hidden: channels of a token.
        num_topk: experts of a token.

    Raises:
        UsageError: sizes below 1.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
    ) -> None:
        sizes = (num_max_tokens_per_rank, hidden, num_topk)
        require(min(sizes) >= 1, "ElasticBuffer", f"sizes {sizes} must be at least 1")
        self.group, self.hidden, self.num_topk = group, hidden, num_topk
        self.num_max_tokens = num_max_tokens_per_rank
        self._exchange = RankExchange(group)
        self.rank, self.num_ranks = self._exchange.rank, self._exchange.num_ranks
        self._ring = PipelineRing(self._exchange)
        self._session = GatherSession(self._exchange)
        self._storage: torch.Tensor | None = None
        self._storage_scale: torch.Tensor | None = None

    def dispatch(
        self,
        x: Tokens,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        num_experts: int,
        do_expand: bool = False,
        expert_alignment: int = 1,
        num_max_tokens_per_rank: int | None = None,
    ) -> tuple[Tokens, torch.Tensor, torch.Tensor, EPHandle, Event]:
        """Rows for this rank's experts.

        Args:
            x: [T, hidden], or (fp8 data, scales [T, .]).
            topk_idx: [T, num_topk] int64 expert ids, -1 for none.
            topk_weights: [T, num_topk] float32.
            do_expand: one row for every (token, local expert), sorted by expert, each expert's
                rows padded with zeros to a multiple of expert_alignment.
            num_max_tokens_per_rank: a smaller limit than the buffer's.

        Returns:
            recv_x, recv_topk_idx (local ids, -1 elsewhere) and recv_topk_weights, [R, num_topk]
            each ([R] with do_expand), the handle and an event.

        Raises:
            UsageError: shapes that do not meet, too many tokens, an expert outside 0..E-1.
        """
        op = "dispatch"
        self._check(op, x, topk_idx, topk_weights, num_experts)
        if num_max_tokens_per_rank is not None:
            room = min(num_max_tokens_per_rank, self.num_max_tokens)
            require(len(topk_idx) <= room, op, f"{len(topk_idx)} tokens, room for {room}")
        parts = x if isinstance(x, tuple) else (x,)
        counts = self._exchange.counts(len(topk_idx))
        gathered = [
            self._exchange.gather(part, self.num_max_tokens)
            for part in (*parts, topk_idx.long(), topk_weights)
        ]
        ids, weights = gathered[-2], gathered[-1]
        local = num_experts // self.num_ranks
        mine = (ids >= self.rank * local) & (ids < (self.rank + 1) * local)
        own = torch.where(mine, ids - self.rank * local, -1)
        valid = torch.arange(self.num_max_tokens) < torch.tensor(counts).unsqueeze(1)
        own = own.masked_fill(~valid.unsqueeze(-1), -1)
        if do_expand:
            return self._expanded(gathered, own, weights, counts, num_experts, expert_alignment)
        ranks, rows = (own >= 0).any(-1).nonzero(as_tuple=True)
        received = tuple(part[ranks, rows] for part in gathered[:-2])
        recv_idx = own[ranks, rows]
        recv_weights = weights[ranks, rows].masked_fill(recv_idx < 0, 0.0)
        psum = torch.zeros(local, dtype=torch.int64)
        slots = torch.full_like(rows, -1)
        handle = EPHandle(ranks, rows, slots, counts, num_experts, False, psum)
        return _unwrapped(received), recv_idx, recv_weights, handle, Event()

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Event]:
        """y [T, hidden]: for each of this rank's tokens the sum of the rows x [R, hidden].

        Sums are float32, in rank order, rounded once to x's dtype. Rows are expected weighted.
        `topk_weights` [R, num_topk], if given, are summed alike and returned.

        Raises:
            UsageError: another number of rows than the dispatch received.
        """
        op = "combine"
        require_float(op, "x", x, ndim=2)
        require_shape(op, "x", x, (len(handle.source_row), self.hidden))
        total = self._returned(x.float(), handle)
        if bias is not None:
            require_shape(op, "bias", bias, tuple(total.shape))
            total = total + bias.float()
        weights = None
        if topk_weights is not None:
            require_shape(op, "topk_weights", topk_weights, (len(x), self.num_topk))
            weights = self._returned(topk_weights.float(), handle)
        return total.to(x.dtype), weights, Event()

    def engram_write(self, storage: torch.Tensor, scale: torch.Tensor | None = None) -> None:
        """Publish this rank's block of Engram rows [n, width], the same n on every rank."""
        require(storage.ndim == 2, "engram_write", f"storage has shape {tuple(storage.shape)}")
        self._storage = self._exchange.gather_equal(storage).reshape(-1, storage.shape[1])
        if scale is not None:
            require(len(scale) == len(storage), "engram_write", "scale needs a row per row")
            self._storage_scale = self._exchange.gather_equal(scale).reshape(-1, scale.shape[1])

    def engram_fetch(
        self, indices: torch.Tensor
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        """A hook that returns (data [T*n, width], scales) of the rows indices [T, n] of all ranks.

        Raises:
            UsageError: nothing written yet, or a row outside the storage.
        """
        if self._storage is None:
            return refuse("engram_fetch", "nothing was written")
        storage, scale = self._storage, self._storage_scale
        require_ids("engram_fetch", "indices", indices, ndim=2)
        ids = indices.long().flatten()
        inside = bool(((ids >= 0) & (ids < len(storage))).all())
        require(inside, "engram_fetch", f"indices must be within 0..{len(storage) - 1}")
        return lambda: (storage[ids], None if scale is None else scale[ids])

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Limits of `pp_send` and `pp_recv`; see `PipelineRing.configure`."""
        self._ring.configure(num_max_tensor_bytes, num_max_inflight_tensors)

    def pp_send(self, t: torch.Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:  # noqa: ARG002
        """Send t to the rank before or after this one; see `PipelineRing.send`."""
        self._ring.send(t, dst_rank_idx)

    def pp_recv(self, t: torch.Tensor, src_rank_idx: int, num_sms: int = 0) -> None:  # noqa: ARG002
        """Receive into t, in place; see `PipelineRing.receive`."""
        self._ring.receive(t, src_rank_idx)

    def agrs_set_config(
        self, num_max_session_bytes: int, num_max_all_gathers_per_session: int
    ) -> None:
        """Limits of a session; see `GatherSession.configure`."""
        self._session.configure(num_max_session_bytes, num_max_all_gathers_per_session)

    def create_agrs_session(self) -> None:
        """Begin an all-gather session."""
        self._session.open()

    def destroy_agrs_session(self) -> None:
        """End it; its in-place tensors may no longer be gathered."""
        self._session.close()

    @contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        """A session for a block; none where not enabled."""
        if not enabled:
            yield
            return
        self.create_agrs_session()
        try:
            yield
        finally:
            self.destroy_agrs_session()

    def agrs_get_inplace_tensor(
        self, shapes: Shape | Sequence[Shape], dtype: torch.dtype
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """This rank's slot for a later `all_gather`; see `GatherSession.slots`."""
        return self._session.slots(shapes, dtype)

    def all_gather(
        self, t: torch.Tensor | Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, ...], Callable[[], None]]:
        """[ranks, ...] of t, or of each of several, filled by the returned hook."""
        return self._session.gather(t)

    def _check(
        self,
        op: str,
        x: Tokens,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        num_experts: int,
    ) -> None:
        data = x[0] if isinstance(x, tuple) else x
        rows = data.shape[0]
        require_shape(op, "x", data, (rows, self.hidden))
        require_shape(op, "topk_idx", topk_idx, (rows, self.num_topk))
        require_shape(op, "topk_weights", topk_weights, (rows, self.num_topk))
        require(rows <= self.num_max_tokens, op, f"{rows} tokens, room for {self.num_max_tokens}")
        local_experts(op, topk_idx, num_experts, self.num_ranks)

    def _expanded(
        self,
        gathered: list[torch.Tensor],
        own: torch.Tensor,
        weights: torch.Tensor,
        counts: tuple[int, ...],
        num_experts: int,
        alignment: int,
    ) -> tuple[Tokens, torch.Tensor, torch.Tensor, EPHandle, Event]:
        """Rows sorted by local expert; padding rows have expert and source -1 and weight 0."""
        experts: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        ends, end = [], 0
        for expert in range(num_experts // self.num_ranks):
            found = (own == expert).nonzero()  # [rows, (rank, token, slot)]
            padding = found.new_full((-len(found) % alignment, 3), -1)
            sources.append(torch.cat((found, padding)))
            experts.append(torch.cat((found[:, 0] * 0 + expert, padding[:, 0])))
            end += len(sources[-1])
            ends.append(end)
        ranks, rows, slots = torch.cat(sources).unbind(1)
        absent = ranks < 0
        received = tuple(
            without_rows(part[ranks.clamp(min=0), rows.clamp(min=0)], absent)
            for part in gathered[:-2]
        )
        taken = weights[ranks.clamp(min=0), rows.clamp(min=0), slots.clamp(min=0)]
        handle = EPHandle(ranks, rows, slots, counts, num_experts, True, torch.tensor(ends))
        chosen = torch.cat(experts)
        return _unwrapped(received), chosen, taken.masked_fill(absent, 0.0), handle, Event()

    def _returned(self, rows: torch.Tensor, handle: EPHandle) -> torch.Tensor:
        return self._exchange.summed_rows(
            rows, handle.source_rank, handle.source_row, handle.counts, self.num_max_tokens
        )


def _unwrapped(received: tuple[torch.Tensor, ...]) -> Tokens:
    return received[0] if len(received) == 1 else (received[0], received[1])
