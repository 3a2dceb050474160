"""Continuous batching: which rows of which requests make the next step."""

from __future__ import annotations

from collections import deque

from engine.config.limits import EngineLimits
from engine.schedule.plan import DraftPlan, DraftSequence, SequenceChunk, StepPlan
from engine.schedule.pool import PagePool
from engine.schedule.request import Request
from engine.schedule.speculation import confident_length, num_accepted
from engine.worker import DraftOutput, StepOutput
from harness.core.errors import UsageError

__all__ = ["Scheduler"]


class Scheduler:
    """First come, first served; a request starts when all pages it may need are free.

    Reserving the whole length at admission means that no running request is ever preempted.

    Args:
        num_lookback: tokens of history the engram hash needs.
        eos_token_id: ends a request that does not ignore it.
    """

    def __init__(self, limits: EngineLimits, num_lookback: int, eos_token_id: int) -> None:
        self._limits = limits
        self._num_lookback = num_lookback
        self._eos_token_id = eos_token_id
        self._pool = PagePool(limits.num_pages, limits.max_num_seqs)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._chunk_owners: list[Request] = []
        self._draft_owners: list[Request] = []
        self._step = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def pool(self) -> PagePool:
        """Pages and slots."""
        return self._pool

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
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request, finished or not; its pages are free at once."""
        if request in self._running:
            self._finish(request, request.finish_reason or "abort")
        elif request in self._waiting:
            self._waiting.remove(request)

    def next_plan(self) -> StepPlan:
        """The next step; `has_work` must hold."""
        self._admit()
        budget = self._limits.max_num_batched_tokens
        chunks: list[SequenceChunk] = []
        self._chunk_owners = []
        has_prompt_rows = False
        for request in sorted(self._running, key=lambda request: not request.is_decoding):
            length = request.num_pending
            if not request.is_decoding:
                length = min(length, budget)
                budget -= length
                has_prompt_rows = has_prompt_rows or length > 0
            # A decoding request always has its last token pending; its drafts come after it.
            if length > 0:
                chunks.append(self._chunk(request, length))
                self._chunk_owners.append(request)
        num_rows = sum(len(chunk.token_ids) for chunk in chunks)
        padded = self._limits.padded_rows(num_rows, has_prompt_rows=has_prompt_rows)
        for request in self._chunk_owners:
            if not request.is_decoding:
                request.num_prefill_steps += 1
            if not request.first_padded_rows:
                request.first_padded_rows, request.first_num_rows = padded, num_rows
        plan = StepPlan(
            step=self._step,
            chunks=tuple(chunks),
            padded_rows=padded,
            context=self._limits.context_bucket(max(chunk.end for chunk in chunks)),
            want_logits=any(request.want_logits for request in self._chunk_owners),
        )
        self._step += 1
        return plan

    def apply(self, plan: StepPlan, output: StepOutput, now_ns: int) -> None:
        """Take in what a step produced; finished requests give their pages back."""
        first = 0
        for request, chunk in zip(self._chunk_owners, plan.chunks, strict=True):
            last = first + chunk.num_logits
            if request.is_decoding or not request.counters:
                request.counters = dict(output.counters)
            target_ids = output.token_ids[first:last]
            accepted = num_accepted(request.drafts, target_ids)
            if request.drafts:
                request.acceptance.note(len(request.drafts), accepted)
                # Rows of rejected drafts are forgotten: what they wrote will be overwritten.
                last = first + accepted + 1
            request.num_computed = chunk.end - len(request.drafts) + accepted
            request.drafts = ()
            if chunk.num_logits:
                self._take_rows(request, output, slice(first, last), now_ns)
            first += chunk.num_logits

    def next_drafts(self) -> DraftPlan | None:
        """Where draft blocks start, for every decoding request that more than one token is due.

        None where there is no such request.
        """
        self._draft_owners = [
            request
            for request in self._running
            if request.is_decoding
            and request.choose is None
            and request.max_tokens - request.num_generated > 1
        ]
        if not self._draft_owners:
            return None
        sequences = tuple(
            DraftSequence(request.slot, request.num_computed - 1, request.tokens[-1])
            for request in self._draft_owners
        )
        return DraftPlan(self._step, sequences)

    def take_drafts(self, output: DraftOutput, threshold: float) -> None:
        """Keep what each request will verify: confident, and no longer than it may become."""
        for request, drafts, confidence in zip(
            self._draft_owners, output.token_ids, output.confidence, strict=True
        ):
            # The step gives one token beyond the accepted drafts.
            room = request.max_tokens - request.num_generated - 1
            request.drafts = drafts[: min(room, confident_length(confidence, threshold))]

    def _admit(self) -> None:
        while self._waiting:
            num_pages = self._limits.pages_for(self._waiting[0].max_total)
            if not self._pool.fits(num_pages):
                return
            request = self._waiting.popleft()
            request.slot, request.pages = self._pool.take(num_pages)
            self._running.append(request)

    def _chunk(self, request: Request, length: int) -> SequenceChunk:
        start = request.num_computed
        end = start + length
        last_only = 1 if end == len(request.tokens) else 0
        num_logits = length if request.scores_prompt else last_only + len(request.drafts)
        return SequenceChunk(
            slot=request.slot,
            start=start,
            token_ids=(*request.tokens[start:end], *request.drafts),
            history=tuple(request.tokens[max(0, start - self._num_lookback) : start]),
            pages=request.pages,
            num_logits=num_logits,
        )

    def _take_rows(self, request: Request, output: StepOutput, rows: slice, now_ns: int) -> None:
        if request.want_logits:
            assert output.logits is not None
            (request.on_logits or request.logits.append)(output.logits[rows])
        request.blocks_excluded.extend(output.blocks_excluded[rows])
        finite = output.is_finite[rows]
        if request.nonfinite_position is None and not all(finite):
            request.nonfinite_position = request.num_computed - len(finite) + finite.index(False)
        if request.scores_prompt and request.num_computed < request.prompt_len:
            return
        if request.max_tokens == 0:
            self._finish(request, "length")
            return
        if request.scores_prompt and request.num_generated == 0:
            rows = slice(rows.stop - 1, rows.stop)
        for count, token in enumerate(_chosen(request, output, rows), start=1):
            request.tokens.append(token)
            request.token_ns.append(now_ns)
            if token == self._eos_token_id and not request.ignore_eos:
                self._cut_logits(request, rows.stop - rows.start - count)
                self._finish(request, "stop")
                return
        if request.num_generated >= request.max_tokens:
            self._finish(request, "length")

    def _cut_logits(self, request: Request, num_rows: int) -> None:
        """Drop the rows of accepted drafts that lie behind the end token."""
        if request.logits and num_rows:
            request.logits[-1] = request.logits[-1][:-num_rows]

    def _finish(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        self._running.remove(request)
        self._pool.give_back(request.slot, request.pages)


def _chosen(request: Request, output: StepOutput, rows: slice) -> tuple[int, ...]:
    """Tokens of the rows: the ranks' greedy ids, or what the request itself picks."""
    if request.choose is None or output.logits is None:
        return output.token_ids[rows]
    return tuple(request.choose(row) for row in output.logits[rows])
