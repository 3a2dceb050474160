"""Between the event loop and the thread the engine runs on.

The thread alone touches the engine. Calls hand it commands through a queue that is emptied before
each step, so a cancelled sequence gives its slot and pages back within one step; after each step
everything new goes to the loop in one hop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from engine.llm import LLM
from engine.schedule.request import Request
from engine.serve.errors import ApiError
from engine.serve.facts import request_facts
from engine.serve.finite import nonfinite_error, num_sound, taking_finite
from engine.serve.logprobs import LogprobRecorder, TokenLogprob
from engine.serve.requests import Sampling
from engine.serve.sampling import chooser_for
from engine.serve.snapshot import EngineSnapshot, SnapshotKeeper
from harness.core.errors import UsageError

__all__ = ["Call", "EngineBridge", "SequenceJob", "TokenEvent"]


@dataclass(frozen=True, slots=True)
class SequenceJob:
    """One sequence to generate.

    Attributes:
        seed: of its sampling.
        scores_prompt: log-probabilities of the prompt are wanted too.
    """

    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    scores_prompt: bool = False


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one step gave one sequence.

    Attributes:
        index: of the sequence within its call.
        token_ns: perf_counter_ns at which the tokens were known.
        finish_reason: "" while it goes on.
        logprobs: one a token where they were asked for.
        prompt_logprobs: of the prompt's second token on, once, with the first tokens.
        facts: what `request_facts` says, with the last token.
        error: ends the sequence in place of a finish reason.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    token_ns: int = 0
    finish_reason: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    facts: Mapping[str, Any] | None = None
    error: ApiError | None = None


@dataclass(slots=True)
class _Sequence:
    call: Call
    index: int
    request: Request
    recorder: LogprobRecorder | None
    num_published: int = 0


_Command = Callable[[], None]
# Told why sequences ended without their last token, and how many.
CountEnded = Callable[[str, int], object]


class Call:
    """The sequences of one HTTP call: iterate over its events, leave it and they are cancelled.

    Raises (from iteration):
        ApiError: 500, the engine failed or computed logits that are no numbers.
    """

    def __init__(
        self,
        bridge: EngineBridge,
        jobs: Sequence[SequenceJob],
        count_ended: CountEnded,
    ) -> None:
        self._bridge = bridge
        self._count_ended = count_ended
        self._jobs = jobs
        self._events: asyncio.Queue[TokenEvent] = asyncio.Queue()
        self._unfinished: set[int] = set()

    async def __aenter__(self) -> Call:
        self._bridge.start(self, self._jobs)
        self._unfinished = set(range(len(self._jobs)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count_ended("abort", len(self._unfinished))
        for index in sorted(self._unfinished):
            self.cancel(index)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while self._unfinished:
            event = await self._events.get()
            if event.index not in self._unfinished:
                continue  # cancelled meanwhile
            if event.finish_reason or event.error is not None:
                self._unfinished.discard(event.index)
            if event.token_ids or event.error is None:
                # What a step gave beside the token that failed is sound.
                yield event
            if event.error is not None:
                self._count_ended("error", 1)
                raise event.error

    def cancel(self, index: int) -> None:
        """End one sequence early."""
        self._unfinished.discard(index)
        self._bridge.cancel(self, index)

    def deliver(self, event: TokenEvent) -> None:
        """Called on the loop by the bridge."""
        self._events.put_nowait(event)


@dataclass(slots=True)
class _Outbox:
    events: list[tuple[Call, TokenEvent]] = field(default_factory=list)
    num_ended: int = 0


class EngineBridge:
    """Runs an engine on a thread of its own for many calls at once.

    Args:
        max_queue: sequences that may wait beyond those the engine has slots for.
        on_failure: called on the loop when the engine has failed for good.
    """

    def __init__(
        self, engine: LLM, *, max_queue: int, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self.engine = engine
        # Every batch of the engine has slots of its own; all are free before it works.
        self.capacity = engine.scheduler.pool.num_free_slots + max_queue
        self.failure: BaseException | None = None
        self.num_in_flight = 0
        self._on_failure = on_failure
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._sequences: dict[tuple[int, int], _Sequence] = {}
        self._keeper = SnapshotKeeper(engine.scheduler)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False

    @property
    def snapshot(self) -> EngineSnapshot:
        """The engine after its last step."""
        return self._keeper.last

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; events go to `loop`."""
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after its present step; what is unfinished is dropped. Idempotent."""
        if self._thread is not None:
            self._commands.put(self._stop)
            self._thread.join()
            self._thread = None

    def call(
        self,
        jobs: Sequence[SequenceJob],
        count_ended: CountEnded = lambda *_: None,
    ) -> Call:
        """Sequences to run together; they start when the call is entered."""
        return Call(self, jobs, count_ended)

    def start(self, call: Call, jobs: Sequence[SequenceJob]) -> None:
        """Queue a call's sequences.

        Raises:
            ApiError: 429, the queue is full; 400, the call alone is larger than the queue;
                503, the engine has failed.
        """
        if self.failure is not None or self._is_closing:
            raise ApiError(503, "the engine is not running")
        if len(jobs) > self.capacity:
            raise ApiError(
                400, f"{len(jobs)} prompts in one call; this server holds {self.capacity}"
            )
        if self.num_in_flight + len(jobs) > self.capacity:
            raise ApiError(
                429, f"{self.num_in_flight} sequences are in flight, the limit is {self.capacity}"
            )
        self.num_in_flight += len(jobs)
        sequences = [self._sequence(call, index, job) for index, job in enumerate(jobs)]
        self._commands.put(lambda: self._submit(sequences))

    def cancel(self, call: Call, index: int) -> None:
        """Drop one sequence; its slot is free before the next step."""
        self._commands.put(lambda: self._abort(call, index))

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        scheduler = self.engine.scheduler
        try:
            while not self._is_closing:
                self._obey(wait=not scheduler.has_work)
                if scheduler.has_work and not self._is_closing:
                    self.engine.step()
                self._publish()
        except Exception as error:
            # Becomes the answer of every call, the server's /health and its exit code.
            self.failure = error
            self._fail_all()

    def _obey(self, *, wait: bool) -> None:
        """Carry out every command there is; where there is nothing else to do, wait for one."""
        if wait:
            self._commands.get()()
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()

    def _stop(self) -> None:
        self._is_closing = True

    def _submit(self, sequences: Sequence[_Sequence]) -> None:
        for sequence in sequences:
            try:
                self.engine.submit(sequence.request)
            except UsageError as error:
                refusal = TokenEvent(sequence.index, error=ApiError(400, str(error)))
                self._on_loop(self._deliver, _Outbox([(sequence.call, refusal)], 1))
            else:
                self._sequences[id(sequence.call), sequence.index] = sequence

    def _abort(self, call: Call, index: int) -> None:
        sequence = self._sequences.get((id(call), index))
        if sequence is not None:
            self._end(sequence.request, "abort")

    def _end(self, request: Request, reason: str) -> None:
        request.finish_reason = request.finish_reason or reason
        self.engine.scheduler.abort(request)

    def _publish(self) -> None:
        outbox = _Outbox()
        for key, sequence in list(self._sequences.items()):
            request = sequence.request
            first = request.prompt_len + sequence.num_published
            tokens = tuple(request.tokens[first : num_sound(request)])
            error = nonfinite_error(request)
            if error is not None:
                self._end(request, "error")
            if tokens or request.finish_reason:
                event = _event(sequence, tokens)
                if error is not None:
                    event = replace(event, error=error, finish_reason="")
                outbox.events.append((sequence.call, event))
                sequence.num_published += len(tokens)
            if request.finish_reason:
                del self._sequences[key]
                outbox.num_ended += 1
                self._keeper.count_ended(request)
        self._keeper.take(sequence.request for sequence in self._sequences.values())
        if outbox.events:
            self._on_loop(self._deliver, outbox)

    def _fail_all(self) -> None:
        error = ApiError(500, f"the engine failed: {self.failure}")
        outbox = _Outbox(
            [(one.call, TokenEvent(one.index, error=error)) for one in self._sequences.values()]
        )
        self._sequences.clear()
        self._on_loop(self._deliver, outbox)
        self._on_loop(lambda _: self._on_failure(), outbox)

    def _on_loop(self, function: Callable[[_Outbox], None], outbox: _Outbox) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, outbox)

    def _deliver(self, outbox: _Outbox) -> None:
        self.num_in_flight -= outbox.num_ended
        for call, event in outbox.events:
            call.deliver(event)

    def _sequence(self, call: Call, index: int, job: SequenceJob) -> _Sequence:
        sampling = job.sampling
        recorder = None
        if sampling.num_logprobs is not None:
            expected = job.token_ids[1:] if job.scores_prompt else ()
            recorder = LogprobRecorder(sampling.num_logprobs, expected)
        request = Request(
            request_id=id(call),
            prompt_len=len(job.token_ids),
            tokens=list(job.token_ids),
            max_tokens=sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            want_logits=recorder is not None,
            scores_prompt=job.scores_prompt,
            on_logits=taking_finite(recorder.take) if recorder is not None else None,
            chooser=chooser_for(sampling, job.seed, self.engine.config.eos_token_id),
        )
        return _Sequence(call, index, request, recorder)


def _event(sequence: _Sequence, tokens: tuple[int, ...]) -> TokenEvent:
    request, recorder = sequence.request, sequence.recorder
    is_first = sequence.num_published == 0
    return TokenEvent(
        index=sequence.index,
        token_ids=tokens,
        token_ns=request.token_ns[-1] if request.token_ns else 0,
        finish_reason=request.finish_reason,
        logprobs=recorder.follow(tokens) if recorder is not None else (),
        prompt_logprobs=tuple(recorder.prompt) if recorder is not None and is_first else (),
        facts=request_facts(request) if request.finish_reason else None,
    )
