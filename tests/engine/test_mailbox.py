"""A leader's messages in shared memory: in order, once for all, not overwritten too soon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.parallel import mailbox as module
from engine.parallel.mailbox import LagError, Mailbox, MailboxReader
from engine.parallel.message import Message
from engine.parallel.topology import Topology
from engine.schedule.plan import DraftPlan, DraftSequence, SequenceChunk, StepPlan
from harness.core.errors import UsageError


@dataclass(frozen=True)
class _Post:
    box: Mailbox
    bells: list[int]
    readers: list[MailboxReader]
    ears: list[int]

    def publish(self, content: bytes, limit_s: float = 5.0) -> list[int]:
        return list(self.box.publish(content, self.bells, limit_s))


@pytest.fixture
def post() -> Iterator[_Post]:
    """A leader with three ranks."""
    box = Mailbox(3)
    pipes = [os.pipe() for _ in range(3)]
    ears = [ear for ear, _ in pipes]
    readers = [MailboxReader(box.path, rank, 3, ear) for rank, ear in enumerate(ears)]
    yield _Post(box, [bell for _, bell in pipes], readers, ears)
    box.close()
    for descriptor in {end for pipe in pipes for end in pipe}:
        try:
            os.close(descriptor)
        except OSError:
            continue  # a test closed it


def test_every_rank_reads_every_message_in_order(post: _Post) -> None:
    for number in range(5):
        content = bytes([number]) * (number * 1000)
        assert post.publish(content) == []
        assert [reader.receive() for reader in post.readers] == [content] * 3


def test_messages_wait_for_a_rank_that_is_one_behind(post: _Post) -> None:
    post.publish(b"first")
    post.publish(b"second")
    assert [post.readers[2].receive() for _ in range(2)] == [b"first", b"second"]
    assert post.readers[0].receive() == b"first"


def test_a_box_is_not_filled_again_before_all_have_taken_what_is_in_it(post: _Post) -> None:
    post.publish(b"first")
    post.publish(b"second")
    for reader in post.readers[:2]:
        reader.receive()
    with pytest.raises(LagError) as caught:
        post.publish(b"third", limit_s=0.05)
    assert caught.value.ranks == (2,)
    late = threading.Timer(0.1, post.readers[2].receive)
    late.start()
    post.publish(b"third", limit_s=5.0)
    late.join()
    assert [post.readers[2].receive() for _ in range(2)] == [b"second", b"third"]


def test_a_message_that_outgrows_its_memory_gets_more(post: _Post) -> None:
    content = os.urandom(3 * 2**20)
    post.publish(b"small")
    for reader in post.readers:
        reader.receive()
    post.publish(content)
    assert all(reader.receive() == content for reader in post.readers)


def test_a_message_beyond_a_box_is_refused_with_what_to_lower(
    post: _Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BOX_BYTES", 2**15)
    with pytest.raises(UsageError, match=r"takes 40016 bytes, at most 32768 .*max-num-batched"):
        post.publish(bytes(40000))


def test_no_room_in_shared_memory_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.parallel.shared_segment._free_bytes", lambda _: 100)
    with pytest.raises(UsageError, match="the steps' messages to this instance's ranks need 4096"):
        Mailbox(3, tmp_path)


def test_a_rank_whose_pipe_is_closed_is_reported(post: _Post) -> None:
    os.close(post.ears[1])
    assert post.publish(b"hello") == [1]


def test_a_leader_that_is_gone_ends_the_waiting(post: _Post) -> None:
    os.close(post.bells[0])
    with pytest.raises(EOFError):
        post.readers[0].receive()


def test_a_message_out_of_turn_is_noticed(post: _Post) -> None:
    os.write(post.bells[0], b"\x01")
    post.publish(b"zero")
    assert post.readers[0].receive() == b"zero"
    with pytest.raises(RuntimeError, match="found message 0 where 1 is due"):
        post.readers[0].receive()


def test_waiting_for_a_message_takes_no_processor_time(post: _Post) -> None:
    before = time.process_time()
    bell = threading.Timer(0.5, post.publish, (b"late",))
    bell.start()
    assert post.readers[0].receive() == b"late"
    bell.join()
    assert time.process_time() - before < 0.1


_CHUNK = SequenceChunk(2, 7, (1, 2, 3), (9, 8), (4, 5), 1)
_PLAN = StepPlan(3, (_CHUNK,), 4, 32, True, has_prompt_rows=True)


def test_what_is_encoded_is_decoded() -> None:
    message = Message("execute", (_PLAN, _PLAN), (True, False))
    assert Message.decode(message.encode()) == message
    drafts = Message("propose", (DraftPlan(1, (DraftSequence(0, 5, 6),)),), (True,))
    assert Message.decode(drafts.encode()) == drafts


def test_the_first_rank_of_a_batch_answers_and_all_where_they_are_compared() -> None:
    message = Message("execute", (_PLAN, _PLAN, _PLAN), (False, True, False))
    assert message.answering(Topology(2, 3)) == [0, 2, 3, 4]
