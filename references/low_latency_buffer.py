"""DeepEP's low-latency exchange (model.md §5.5): every expert receives rows of its own,
[local experts, N * max tokens, H], an expert's rows first, by rank and token, the others zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from references.operands import require, require_float, require_multiple, require_shape
from references.rank_exchange import Event, RankExchange, local_experts
from references.scaled_matrices import per_token_cast

__all__ = ["LowLatencyBuffer", "LowLatencyHandle"]

Tokens = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
_SCALE_CHANNELS = 128


@dataclass(frozen=True, slots=True)
class LowLatencyHandle:
    """Where this rank's tokens lie: places [T, k] within their expert's rows, -1 for none."""

    places: torch.Tensor
    max_tokens: int
    hidden: int
    num_experts: int


class LowLatencyBuffer:
    """One rank's end of the low-latency exchange; group None means one process."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self._exchange = RankExchange(group)
        self.rank, self.group_size = self._exchange.rank, self._exchange.num_ranks

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes of one bf16 receive buffer of a rank."""
        local = num_experts // num_ranks
        return 2 * local * num_ranks * num_max_dispatch_tokens_per_rank * hidden

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Every call makes buffers of its own: nothing to clean.

        Raises:
            UsageError: a size below 1.
        """
        sizes = (num_max_dispatch_tokens_per_rank, hidden, num_experts)
        require(min(sizes) >= 1, "clean_low_latency_buffer", f"sizes {sizes} must be at least 1")

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,  # noqa: ARG002
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,  # noqa: ARG002
        return_recv_hook: bool = False,
    ) -> tuple[Tokens, torch.Tensor, LowLatencyHandle, Event, Callable[[], None] | None]:
        """(rows [local experts, N * max tokens, H] bf16, or (fp8, float32 scales of 128 channels);
        rows of each expert int32; handle; event; hook).

        An expert's rows come first, by rank and token; the others are zero. With return_recv_hook
        all rows are zero until the hook is called.

        Args:
            cumulative_local_expert_recv_stats: int32 [local experts]; the rows are added, in place.

        Raises:
            UsageError: too many tokens, H no multiple of 128 for fp8, packed ue8m0 scales.
        """
        op = "low_latency_dispatch"
        require(x.dtype == torch.bfloat16, op, f"x has dtype {x.dtype}: pass bfloat16")
        require_float(op, "x", x, ndim=2)
        local = local_experts(op, topk_idx, num_experts, self.group_size)
        require(len(topk_idx) == len(x), op, f"{len(topk_idx)} rows of topk_idx, {len(x)} of x")
        room = num_max_dispatch_tokens_per_rank
        require(len(x) <= room, op, f"{len(x)} tokens, room for {room}")
        require(not use_ue8m0, op, "scales are plain float32 rows here: use_ue8m0=False")
        parts: tuple[torch.Tensor, ...] = (x,)
        if use_fp8:
            require_multiple(op, "hidden", x.shape[1], _SCALE_CHANNELS)
            parts = per_token_cast(op, x, "e4m3", _SCALE_CHANNELS, round_scale)
        ids, places = self._places(topk_idx, room, num_experts)
        arrived = [self._by_expert(part, ids, places, room, local) for part in parts]
        shown = [torch.zeros_like(part) if return_recv_hook else part for part in arrived]
        first = self.rank * local
        own = torch.arange(first, first + local)
        count = (ids.reshape(-1, 1) == own).sum(0).int()
        if cumulative_local_expert_recv_stats is not None:
            stats = cumulative_local_expert_recv_stats
            require_shape(op, "cumulative_local_expert_recv_stats", stats, (local,))
            stats.add_(count)

        def hook() -> None:
            for output, part in zip(shown, arrived, strict=True):
                output.copy_(part)

        mine = places[self.rank, : len(x)]
        handle = LowLatencyHandle(mine, room, x.shape[1], num_experts)
        rows = (shown[0], shown[1]) if use_fp8 else shown[0]
        return rows, count, handle, Event(), hook if return_recv_hook else None

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,  # noqa: ARG002 - nothing is copied twice
        async_finish: bool = False,  # noqa: ARG002
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,  # noqa: ARG002
    ) -> tuple[torch.Tensor, Event, Callable[[], None] | None]:
        """(y [T, H] bf16: each token's rows of x [local experts, N * max tokens, H], weighted by
        topk_weights [T, k] and summed in float32 in the order of its slots; event; hook).

        Args:
            out: written in place and returned.

        Raises:
            UsageError: shapes that do not meet the handle's, the 10-bit LogFMT.
        """
        op = "low_latency_combine"
        require(not use_logfmt, op, "LogFMT is a wire format of the CUDA kernels: use_logfmt=False")
        local = local_experts(op, topk_idx, handle.num_experts, self.group_size)
        rows = self.group_size * handle.max_tokens
        require(x.dtype == torch.bfloat16, op, f"x has dtype {x.dtype}: pass bfloat16")
        require_shape(op, "x", x, (local, rows, handle.hidden))
        require_shape(op, "topk_idx", topk_idx, tuple(handle.places.shape))
        require_shape(op, "topk_weights", topk_weights, tuple(handle.places.shape))
        result = x.new_empty(len(topk_idx), handle.hidden) if out is None else out
        require_shape(op, "out", result, (len(topk_idx), handle.hidden))
        everywhere = self._exchange.gather_equal(x).reshape(handle.num_experts, rows, -1).float()
        total = torch.zeros(len(topk_idx), handle.hidden)
        for slot in range(topk_idx.shape[1]):
            there = topk_idx[:, slot] >= 0
            taken = everywhere[topk_idx[there, slot].long(), handle.places[there, slot]]
            total[there] += topk_weights[there, slot, None].float() * taken

        def hook() -> None:
            result.copy_(total)

        if not return_recv_hook:
            hook()
        return result, Event(), hook if return_recv_hook else None

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """A bf16 [local experts, N * max tokens, H] to fill and pass to `low_latency_combine`."""
        local = handle.num_experts // self.group_size
        rows = self.group_size * handle.max_tokens
        return torch.zeros(local, rows, handle.hidden, dtype=torch.bfloat16)

    def _places(
        self, topk_idx: torch.Tensor, room: int, num_experts: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(expert ids, place among the expert's rows) [N, max tokens, k] of all ranks' tokens."""
        ids = self._exchange.gather(topk_idx.long() + 1, room) - 1
        flat = ids.reshape(-1)
        chosen = flat.unsqueeze(1) == torch.arange(num_experts)
        before = chosen.cumsum(0) - 1
        places = before.gather(1, flat.clamp(min=0).unsqueeze(1)).squeeze(1)
        return ids, torch.where(flat >= 0, places, -1).reshape(ids.shape)

    def _by_expert(
        self, part: torch.Tensor, ids: torch.Tensor, places: torch.Tensor, room: int, local: int
    ) -> torch.Tensor:
        """[local experts, N * room, .] of every rank's rows, zero where no token lies."""
        everything = self._exchange.gather(part, room)
        out = torch.zeros(local, self.group_size * room, part.shape[1], dtype=torch.float32)
        own = ids - self.rank * local
        rank, token, slot = ((own >= 0) & (own < local) & (ids >= 0)).nonzero(as_tuple=True)
        values = everything[rank, token].float()  # exact: bf16, fp8 and fp32 alike
        out[own[rank, token, slot], places[rank, token, slot]] = values
        return out.to(part.dtype)
