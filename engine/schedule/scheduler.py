"""Continuous batching: which rows of which requests make the next step."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config.limits import EngineLimits
from engine.outputs import DraftOutput, StepOutput
from engine.schedule.plan import AttentionPath, DraftPlan, DraftSequence, SequenceChunk, StepPlan
from engine.schedule.pool import PagePool
from engine.schedule.request import Request
from engine.schedule.residence import Residence
from engine.schedule.selection import chosen_tokens, num_top, wants_logits
from engine.schedule.speculation import confident_length
from harness.core.engine_face import StepShape

__all__ = ["Scheduler"]

_CAPACITY_COUNTS = {"moe_overflows", "moe_dense_reruns"}
_Rows = list[tuple[Request, int]]
"""Requests of a step and how many of their known tokens it computes."""


class Scheduler:
    """Plans steps for what resides (see Residence), and takes their outputs in.

    Without a prefill path of its own a step holds the rows of all decoding requests and, up to
    the budget, rows of prompts. With one, steps of prompt rows and steps of decode rows take turns
    while there are both: a decode waits for one prefill step at most, a prompt for one decode step.

    Args:
        num_lookback: tokens of history the engram hash needs.
        eos_token_id: ends a request that does not ignore it.
    """

    def __init__(self, limits: EngineLimits, num_lookback: int, eos_token_id: int) -> None:
        self._limits = limits
        self._num_lookback = num_lookback
        self._eos_token_id = eos_token_id
        self._residence = Residence(limits)
        self._chunk_owners: list[Request] = []
        self._draft_owners: list[Request] = []
        self._last_path: AttentionPath = "decode"
        self._step = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._residence.waiting or self._residence.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started, or were sent back."""
        return len(self._residence.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._residence.running)

    @property
    def num_preemptions(self) -> int:
        """Times a request gave its pages up for an older one."""
        return self._residence.num_preemptions

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that hold a slot, oldest first."""
        return tuple(self._residence.running)

    @property
    def num_pending_tokens(self) -> int:
        """Rows still to be computed for all requests, as far as they may go."""
        unfinished = (*self._residence.waiting, *self._residence.running)
        return sum(request.max_total - request.num_computed for request in unfinished)

    @property
    def pool(self) -> PagePool:
        """Pages and slots."""
        return self._residence.pool

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            UsageError: it could never run: longer than max_model_len or the whole pool.
        """
        self._residence.add(request)

    def abort(self, request: Request) -> None:
        """Drop a request, finished or not; its pages are free at once."""
        was_running = request.slot >= 0
        if self._residence.remove(request) and was_running:
            request.finish_reason = request.finish_reason or "abort"

    def next_plan(self) -> StepPlan:
        """The next step; `has_work` must hold."""
        self._residence.make_room()
        path, rows = self._next_rows()
        self._last_path = path
        self._chunk_owners = [request for request, _ in rows]
        chunks = tuple(self._chunk(request, length) for request, length in rows)
        num_rows = sum(len(chunk.token_ids) for chunk in chunks)
        has_prompt_rows = any(not request.is_decoding for request in self._chunk_owners)
        if path == "prefill":
            padded = self._limits.prefill_rows(num_rows)
        else:
            padded = self._limits.padded_rows(num_rows, has_prompt_rows=has_prompt_rows)
        plan = StepPlan(
            step=self._step,
            chunks=chunks,
            padded_rows=padded,
            context=self._limits.context_bucket(max(chunk.end for chunk in chunks)),
            want_logits=any(map(wants_logits, self._chunk_owners)),
            path=path,
            has_prompt_rows=has_prompt_rows,
            num_top=max(map(num_top, self._chunk_owners)),
        )
        self._step += 1
        return plan

    def apply(self, plan: StepPlan, output: StepOutput, now_ns: int) -> None:
        """Take in what a step produced; finished requests give their pages back."""
        shape = StepShape(plan.num_rows, plan.padded_rows, plan.context, plan.path)
        first = 0
        for request, chunk in zip(self._chunk_owners, plan.chunks, strict=True):
            rows = slice(first, first + chunk.num_logits)
            first = rows.stop
            self._count(request, shape, output)
            num_drafts = len(request.drafts)
            chosen: tuple[int, ...] = ()
            if request.max_tokens and chunk.end - num_drafts == len(request.tokens):
                chosen = chosen_tokens(request, output, rows)
            if num_drafts:
                request.acceptance.note(num_drafts, len(chosen) - 1)
            # Rows of rejected drafts are forgotten: what they wrote will be overwritten.
            num_rejected = num_drafts + 1 - len(chosen) if num_drafts else 0
            request.num_computed = chunk.end - num_rejected
            request.drafts, request.proposals = (), ()
            _note_rows(request, output, slice(rows.start, rows.stop - num_rejected))
            self._append(request, chosen, now_ns)

    def next_drafts(self) -> DraftPlan | None:
        """Where draft blocks start, for every decoding request that more than one token is due.

        None where there is no such request.
        """
        self._draft_owners = [
            request
            for request in self._residence.running
            if request.is_decoding
            and not request.drafts
            and request.max_tokens - request.num_generated > 1
        ]
        if not self._draft_owners:
            return None
        block_size = self._limits.backtrack - 1
        sequences = tuple(
            DraftSequence(
                request.slot,
                request.num_computed - 1,
                request.tokens[-1],
                request.chooser.draft_choice(block_size) if request.chooser else None,
            )
            for request in self._draft_owners
        )
        return DraftPlan(self._step, sequences)

    def take_drafts(self, output: DraftOutput, threshold: float) -> None:
        """Keep what each request will verify: confident, and no longer than it may become."""
        for place, request in enumerate(self._draft_owners):
            # The step gives one token beyond the accepted drafts.
            room = request.max_tokens - request.num_generated - 1
            count = min(room, confident_length(output.confidence[place], threshold))
            request.drafts = output.token_ids[place][:count]
            if request.chooser is not None:
                request.proposals = output.proposals[place][:count]

    def _next_rows(self) -> tuple[AttentionPath, _Rows]:
        running = self._residence.running
        decoding = [(request, request.num_pending) for request in running if request.is_decoding]
        prompts = self._within_budget(request for request in running if not request.is_decoding)
        if not self._limits.prefill_buckets:
            return "decode", [*decoding, *prompts]
        if prompts and (not decoding or self._last_path == "decode"):
            return "prefill", prompts
        return "decode", decoding

    def _within_budget(self, requests: Iterable[Request]) -> _Rows:
        """The next prompt rows, oldest request first."""
        budget = self._limits.max_num_batched_tokens
        rows = []
        for request in requests:
            length = min(request.num_pending, budget)
            budget -= length
            if length:
                rows.append((request, length))
        return rows

    def _chunk(self, request: Request, length: int) -> SequenceChunk:
        start = request.num_computed
        end = start + length
        num_logits = 1 if end == len(request.tokens) else 0
        if request.scores_prompt:
            num_logits = max(0, end - max(start, request.num_scored))
        return SequenceChunk(
            slot=request.slot,
            start=start,
            token_ids=(*request.tokens[start:end], *request.drafts),
            history=tuple(request.tokens[max(0, start - self._num_lookback) : start]),
            pages=request.pages,
            num_logits=num_logits + len(request.drafts),
        )

    @staticmethod
    def _count(request: Request, shape: StepShape, output: StepOutput) -> None:
        """Its shape, counters of a decode step, steps and launches until the first token."""
        request.steps.append(shape)
        if request.is_decoding or not request.counters:
            request.counters = dict(output.counters)
        if request.num_generated == 0:
            request.num_prefill_steps += 1
            request.prefill_launches += output.counters.get("launches", 0.0)
        for name in _CAPACITY_COUNTS & output.counters.keys():
            request.capacity_counts[name] += round(output.counters[name])

    def _append(self, request: Request, chosen: tuple[int, ...], now_ns: int) -> None:
        """Take tokens up to the end token; a request that has all it asked for is over."""
        for count, token in enumerate(chosen, start=1):
            request.tokens.append(token)
            request.token_ns.append(now_ns)
            if token == self._eos_token_id and not request.ignore_eos:
                self._cut_logits(request, len(chosen) - count)
                self._finish(request, "stop")
                return
        if request.num_generated >= request.max_tokens and request.is_decoding:
            self._finish(request, "length")

    def _cut_logits(self, request: Request, num_rows: int) -> None:
        """Drop the rows of accepted drafts that lie behind the end token."""
        if request.logits and num_rows:
            request.logits[-1] = request.logits[-1][:-num_rows]

    def _finish(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        self._residence.remove(request)


def _note_rows(request: Request, output: StepOutput, rows: slice) -> None:
    """Keep what a step says about a request's rows."""
    if rows.start == rows.stop:
        return
    if request.want_logits:
        assert output.logits is not None
        (request.on_logits or request.logits.append)(output.logits[rows])
    request.blocks_excluded.extend(output.blocks_excluded[rows])
    finite = output.is_finite[rows]
    if request.nonfinite_position is None and not all(finite):
        request.nonfinite_position = request.num_computed - len(finite) + finite.index(False)
    request.num_scored = request.num_computed
