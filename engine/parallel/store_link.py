"""Messages, answers and reports of ranks that share no memory, through torch's key-value store."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from engine.parallel.failure import Failure
from engine.parallel.message import Message
from engine.parallel.patience import Patience

__all__ = ["Report", "SilenceError", "StoreLink"]

_REST_S = 5.0
_PAUSE_S = 0.02
_GRACE_S = 5.0
Report = tuple[Failure, bytes]
"""A rank's failure and its ring of collectives."""


class SilenceError(RuntimeError):
    """The leader, or the store that it speaks through, has said nothing for too long."""


class StoreLink:
    """One rank's end.

    Messages are numbered; the leader, where it has nothing to say, says so every few seconds, so
    that followers tell a leader that waits from one that is gone.

    Args:
        store: of torch.distributed (whose stubs know neither bytes nor `clone`); cloned for each
            thread that waits on it.
        limit_s: of silence, and for an answer.
    """

    def __init__(self, store: Any, rank: int, size: int, limit_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._number = 0
        self._num_deleted = 0
        self._last_said = time.monotonic()
        self._says_compiling = False
        self._closed = threading.Event()
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start_leading(self) -> None:
        """Keep followers from taking a pause for the end."""
        threading.Thread(target=self._keep_alive, args=(self._store.clone(),), daemon=True).start()

    def start_following(self, on_lost: Callable[[], object]) -> None:
        """Receive from now on.

        Args:
            on_lost: called from another thread when the leader has been gone for some time and
                this rank is still there: it hangs.
        """
        arguments = (self._store.clone(), on_lost)
        threading.Thread(target=self._listen, args=arguments, daemon=True).start()

    def publish(self, message: Message) -> int:
        """Tell every follower; returns the message's number."""
        return self._publish(self._store, message)

    def forget_until(self, number: int) -> None:
        """Messages before `number` have reached every rank."""
        for past in range(self._num_deleted, number):
            self._store.delete_key(_message_key(past))
        self._num_deleted = max(self._num_deleted, number)

    def receive(self) -> Message:
        """The leader's next message that asks for something.

        Raises:
            SilenceError: nothing came within the limit, or the store is gone.
        """
        while True:
            content = self._inbox.get()
            if content is None:
                raise SilenceError(f"rank 0 gave no sign of life for {self._limit_s:g} s")
            message = Message.decode(content)
            self._number += 1
            if message.method != "rest":
                return message

    @property
    def number(self) -> int:
        """Of the message received last."""
        return self._number - 1

    def answer(self, output: object) -> None:
        """Say what the message received last has led to."""
        self._store.set(_answer_key(self.number, self._rank), pickle.dumps(output))

    def collect(self, number: int, ranks: Sequence[int]) -> dict[int, Any]:
        """Answers of `ranks` to a message.

        Raises:
            SilenceError: one is missing after the limit.
        """
        answers = {}
        for rank in ranks:
            key = _answer_key(number, rank)
            try:
                self._store.wait([key], timedelta(seconds=self._limit_s))
            except RuntimeError as error:
                raise SilenceError(f"rank {rank}: {error}") from error
            answers[rank] = pickle.loads(self._store.get(key))
            self._store.delete_key(key)
        return answers

    def say_ready(self) -> None:
        """This rank has loaded its weights."""
        self._store.set(f"ready/{self._rank}", "")

    def wait_until_ready(self, limit_s: float) -> list[int]:
        """Ranks that are not ready after the limit, or when a rank reports a failure."""
        deadline = time.monotonic() + limit_s
        waiting = list(range(self._size))
        while waiting and time.monotonic() < deadline and not self._ranks_with("failure"):
            waiting = [rank for rank in waiting if not self._store.check([f"ready/{rank}"])]
            time.sleep(_PAUSE_S)
        return waiting

    def note_compilation(self, region: str) -> None:
        """Tell the others that this rank makes a graph, until `take_back`."""
        self._store.set(f"compiling/{self._rank}", region)
        self._says_compiling = True

    def take_back(self) -> None:
        """See engine.parallel.rank_groups.CompilationNotice."""
        if self._says_compiling:
            self._store.delete_key(f"compiling/{self._rank}")
            self._says_compiling = False

    def patience(self) -> Patience:
        """See engine.parallel.rank_groups.CompilationNotice.

        How long a graph may take is torch's limit to say (engine.parallel.torchrun): a rank that
        dies while it says so is seen by its closed sockets.
        """
        return Patience(self._limit_s, lambda: bool(self._ranks_with("compiling")))

    def set(self, key: str, text: str) -> None:
        """Leave a word for other ranks."""
        self._store.set(key, text)

    def get(self, key: str) -> str:
        """A word that another rank leaves, waited for."""
        self._store.wait([key], timedelta(seconds=self._limit_s))
        text: str = self._store.get(key).decode()
        return text

    def report(self, failure: Failure, ring: bytes) -> None:
        """Tell the leader why this rank ends; says nothing where the store is gone."""
        try:
            self._store.set(f"failure/{self._rank}", pickle.dumps((failure, ring)))
        except RuntimeError:
            return  # the store went with the host that kept it, and the leader with both

    def reports(self, limit_s: float) -> dict[int, Report]:
        """What ranks have reported, when all have or after the limit."""
        deadline = time.monotonic() + limit_s
        while len(ranks := self._ranks_with("failure")) < self._size:
            if time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE_S)
        return {rank: pickle.loads(self._store.get(f"failure/{rank}")) for rank in ranks}

    def close(self) -> None:
        """Nothing more will be said or heard; idempotent."""
        self._closed.set()

    def _ranks_with(self, word: str) -> list[int]:
        """Ranks that have left a word; none where the store is gone."""
        try:
            return [rank for rank in range(self._size) if self._store.check([f"{word}/{rank}"])]
        except RuntimeError:
            return []

    def _publish(self, store: Any, message: Message) -> int:
        with self._lock:
            number = self._number
            store.set(_message_key(number), message.encode())
            self._number += 1
            self._last_said = time.monotonic()
        return number

    def _keep_alive(self, store: Any) -> None:
        rest_s = min(_REST_S, self._limit_s / 4)
        while not self._closed.wait(rest_s / 2):
            if time.monotonic() - self._last_said > rest_s:
                try:
                    self._publish(store, Message("rest"))
                except RuntimeError:
                    return  # the store is gone: followers see that for themselves

    def _listen(self, store: Any, on_lost: Callable[[], object]) -> None:
        """Waits where no signal interrupts it, so that the main thread need not."""
        number = 0
        while not self._closed.is_set():
            try:
                store.wait([_message_key(number)], timedelta(seconds=self._limit_s))
                content = store.get(_message_key(number))
            except RuntimeError:
                self._inbox.put(None)
                if not self._closed.wait(_GRACE_S):
                    on_lost()
                return
            self._inbox.put(content)
            if Message.decode(content).method == "stop":
                return
            number += 1


def _message_key(number: int) -> str:
    return f"message/{number}"


def _answer_key(number: int, rank: int) -> str:
    return f"answer/{number}/{rank}"
