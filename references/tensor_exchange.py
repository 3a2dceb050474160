"""Whole tensors between ranks: DeepEP's pipeline ring and its all-gather sessions (§5.5)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from references.operands import refuse, require
from references.rank_exchange import RankExchange

__all__ = ["GatherSession", "PipelineRing", "Shape"]

Shape = tuple[int, ...] | torch.Size


class PipelineRing:
    """Sends and receives between neighbours of the ring of ranks; one process is its own
    neighbour."""

    def __init__(self, exchange: RankExchange) -> None:
        self._exchange = exchange
        self._max_bytes = self._max_inflight = 0
        self._inflight: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._own: deque[torch.Tensor] = deque()

    def configure(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Set the limits, once what was sent before has arrived.

        Raises:
            UsageError: a limit below 1; tensors that this process sent itself and never took.
        """
        op = "pp_set_config"
        limits = (num_max_tensor_bytes, num_max_inflight_tensors)
        require(min(limits) >= 1, op, f"limits {limits} must be at least 1")
        require(not self._own, op, f"{len(self._own)} tensors were sent and not received")
        while self._inflight:
            self._inflight.popleft()[0].wait()
        self._max_bytes, self._max_inflight = limits

    def send(self, t: torch.Tensor, to_rank: int) -> None:
        """Returns once fewer than the configured number of tensors are on their way.

        Raises:
            UsageError: not configured, not a neighbour, not contiguous or too large; in one
                process also more tensors than may be in flight.
        """
        self._check("pp_send", t, to_rank)
        group = self._exchange.group
        if group is None:
            full = len(self._own) >= self._max_inflight
            require(not full, "pp_send", f"{self._max_inflight} tensors wait to be received")
            self._own.append(t.clone())
            return
        while len(self._inflight) >= self._max_inflight:
            self._inflight.popleft()[0].wait()
        as_bytes = t.clone().view(torch.uint8)
        work = dist.isend(as_bytes, dist.get_global_rank(group, to_rank), group=group)
        if work is None:
            refuse("pp_send", "this process is not in the group")
        self._inflight.append((work, as_bytes))

    def receive(self, t: torch.Tensor, from_rank: int) -> None:
        """Fill t with the oldest tensor the neighbour sent.

        Raises:
            UsageError: as `send`; in one process also nothing to receive, or another shape.
        """
        self._check("pp_recv", t, from_rank)
        group = self._exchange.group
        if group is None:
            require(bool(self._own), "pp_recv", "nothing was sent")
            sent = self._own.popleft()
            same = sent.shape == t.shape and sent.dtype == t.dtype
            require(same, "pp_recv", f"{tuple(sent.shape)} was sent, t has {tuple(t.shape)}")
            t.copy_(sent)
            return
        as_bytes = torch.empty_like(t).view(torch.uint8)
        dist.recv(as_bytes, dist.get_global_rank(group, from_rank), group=group)
        t.copy_(as_bytes.view(t.dtype).view(t.shape))

    def _check(self, op: str, t: torch.Tensor, other: int) -> None:
        ranks, rank = self._exchange.num_ranks, self._exchange.rank
        require(self._max_bytes > 0, op, "call pp_set_config first")
        neighbours = {(rank - 1) % ranks, (rank + 1) % ranks}
        require(other in neighbours, op, f"rank {other} is no neighbour of {rank} of {ranks}")
        require(t.is_contiguous() and t.ndim > 0, op, "t must be a contiguous tensor with an axis")
        size = t.numel() * t.element_size()
        require(size <= self._max_bytes, op, f"t has {size} bytes, at most {self._max_bytes}")


class GatherSession:
    """All-gathers between `open` and `close`, within configured limits."""

    def __init__(self, exchange: RankExchange) -> None:
        self._exchange = exchange
        self._max_bytes = self._max_gathers = 0
        self._is_open = False
        self._num_bytes = self._num_gathers = 0

    def configure(self, num_max_session_bytes: int, num_max_all_gathers_per_session: int) -> None:
        """Set the limits: bytes of all gathered tensors, and number of all-gathers.

        Raises:
            UsageError: a limit below 1, a session is open.
        """
        limits = (num_max_session_bytes, num_max_all_gathers_per_session)
        require(min(limits) >= 1, "agrs_set_config", f"limits {limits} must be at least 1")
        require(not self._is_open, "agrs_set_config", "a session is open")
        self._max_bytes, self._max_gathers = limits

    def open(self) -> None:
        """Begin.

        Raises:
            UsageError: not configured, or a session is open.
        """
        require(self._max_bytes > 0, "create_agrs_session", "call agrs_set_config first")
        require(not self._is_open, "create_agrs_session", "a session is open")
        self._is_open, self._num_bytes, self._num_gathers = True, 0, 0

    def close(self) -> None:
        """End, when every rank is here.

        Raises:
            UsageError: no session is open.
        """
        require(self._is_open, "destroy_agrs_session", "no session is open")
        self._exchange.counts(self._num_gathers)
        self._is_open = False

    def slots(
        self, shapes: Shape | Sequence[Shape], dtype: torch.dtype
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """A tensor of that shape, or one of each of several shapes, to fill and gather.

        Raises:
            UsageError: no session is open, or the gathered tensors would not fit it.
        """
        op = "agrs_get_inplace_tensor"
        require(self._is_open, op, "no session is open")
        if shapes and isinstance(shapes[0], int):
            return self._slot(op, tuple(shapes), dtype)  # type: ignore[arg-type]
        return tuple(self._slot(op, tuple(shape), dtype) for shape in shapes)  # type: ignore[arg-type]

    def gather(
        self, t: torch.Tensor | Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, ...], Callable[[], None]]:
        """[ranks, ...] of t (or a tuple of them), zero until the hook is called.

        Raises:
            UsageError: no session is open, its number of all-gathers or its bytes are spent.
        """
        op = "all_gather"
        require(self._is_open, op, "no session is open")
        parts = (t,) if isinstance(t, torch.Tensor) else tuple(t)
        spent = self._num_gathers + 1 > self._max_gathers
        require(not spent, op, f"a session has {self._max_gathers} all-gathers")
        self._num_gathers += 1
        for part in parts:
            self._count_bytes(op, part.numel() * part.element_size())
        arrived = [self._exchange.gather_equal(part) for part in parts]
        outputs = tuple(torch.zeros_like(one) for one in arrived)

        def hook() -> None:
            for output, one in zip(outputs, arrived, strict=True):
                output.copy_(one)

        return (outputs[0] if isinstance(t, torch.Tensor) else outputs), hook

    def _slot(self, op: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize * self._exchange.num_ranks
        room = self._max_bytes - self._num_bytes
        require(size <= room, op, f"{size} gathered bytes, the session has {room} left")
        return torch.empty(shape, dtype=dtype)

    def _count_bytes(self, op: str, size: int) -> None:
        total = self._num_bytes + size * self._exchange.num_ranks
        require(total <= self._max_bytes, op, f"{total} bytes, a session has {self._max_bytes}")
        self._num_bytes = total
