"""Which requests hold a slot and pages: admission, growth, preemption."""

from __future__ import annotations

from collections import deque

from engine.config.limits import EngineLimits
from engine.schedule.pool import PagePool
from engine.schedule.request import Request
from harness.core.errors import UsageError

__all__ = ["Residence"]


class Residence:
    """First come, first served over a fixed pool of pages (port.md R9).

    A request starts once the pages of its known tokens are free, and takes further ones as it
    grows. Where none is left, the request that came last gives up its own and waits at the head
    of the queue; its tokens are computed again later, and what it has said stays said. The oldest
    request always gets on, since one that exceeds the whole pool is refused beforehand.

    Attributes:
        running: requests that hold a slot, oldest first.
        num_preemptions: since the start.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.pool = PagePool(limits.num_pages, limits.max_num_seqs)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            UsageError: it could never run: longer than max_model_len or the whole pool.
        """
        limits = self._limits
        if request.max_total > limits.max_model_len:
            raise UsageError(
                f"prompt of {request.prompt_len} tokens plus max_tokens={request.max_tokens} "
                f"is {request.max_total}, max_model_len is {limits.max_model_len}"
            )
        needed, available = limits.pages_for(request.max_total), limits.num_pages - 1
        if needed > available:
            raise UsageError(
                f"a request of {request.max_total} tokens needs {needed} KV pages of "
                f"{limits.page_size} tokens, num_kv_blocks is {available}"
            )
        self.waiting.append(request)

    def remove(self, request: Request) -> bool:
        """Drop a request wherever it is; False: it was not here."""
        if request in self.running:
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return False
        return True

    def make_room(self) -> None:
        """Give every decoding request the pages of its next step, then let others in."""
        for request in list(self.running):
            if request in self.running and request.is_decoding:
                self._grow(request)
        while self.waiting and self._fits(self.waiting[0]):
            request = self.waiting.popleft()
            request.slot, request.pages = self.pool.take(self._pages_to_start(request))
            self.running.append(request)

    def _fits(self, request: Request) -> bool:
        # One page is spared for each that runs: else the newcomer would soon be sent back.
        return self.pool.fits(self._pages_to_start(request) + len(self.running))

    def _pages_to_start(self, request: Request) -> int:
        return self._limits.pages_for(len(request.tokens))

    def _grow(self, request: Request) -> None:
        needed = self._limits.pages_for(len(request.tokens) + len(request.drafts))
        missing = needed - len(request.pages)
        while missing > self.pool.num_free_pages:
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return
        request.pages += self.pool.grow(max(0, missing))

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.num_computed = 0
        request.drafts, request.proposals = (), ()
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.give_back(request.slot, request.pages)
        request.slot, request.pages = -1, ()
