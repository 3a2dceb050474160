"""Shared memory without a name: shared, reserved, and gone with its last user."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.parallel.shared_segment import SHARED_DIRECTORY, SharedSegment
from harness.core.errors import UsageError

_MIB = 2**20


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    place = tmp_path / "shm"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root and a mount namespace that allows it")
    try:
        yield place
    finally:
        gc.collect()
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_what_one_mapping_writes_another_reads() -> None:
    ours = SharedSegment.create(8192, "test bytes")
    theirs = SharedSegment.open(ours.path)
    assert bytes(theirs.view) == bytes(8192)
    ours.view[8190:] = b"ab"
    assert bytes(theirs.view[8190:]) == b"ab"


def test_a_segment_has_no_name_and_no_two_are_the_same() -> None:
    before = set(os.listdir(SHARED_DIRECTORY))
    first, second = (SharedSegment.create(4096, "test bytes") for _ in range(2))
    assert set(os.listdir(SHARED_DIRECTORY)) == before
    assert not os.path.samefile(first.path, second.path)
    first.view[0] = 7
    assert second.view[0] == 0


def test_a_mapping_outlives_the_descriptor_but_nobody_new_can_open_it() -> None:
    segment = SharedSegment.create(4096, "test bytes")
    opened = SharedSegment.open(segment.path)
    segment.forget()
    segment.forget()
    with pytest.raises(FileNotFoundError):
        SharedSegment.open(segment.path)
    segment.view[5] = 9
    assert opened.view[5] == 9


def test_a_tensor_keeps_the_memory_it_lies_in() -> None:
    segment = SharedSegment.create(4096, "test bytes")
    segment.view[:3] = b"xyz"
    tensor = torch.frombuffer(segment.view, dtype=torch.uint8)
    segment.forget()
    del segment
    gc.collect()
    assert bytes(tensor[:3].tolist()) == b"xyz"


def test_a_full_file_system_names_needed_and_free_bytes_and_a_remedy(small_tmpfs: Path) -> None:
    taken = SharedSegment.create(_MIB // 2, "the first", small_tmpfs)
    expected = (
        rf"{small_tmpfs} is full: the tables need {_MIB} bytes, {_MIB // 2} are free; .*"
        r"room for 1 MiB more \(mount -o remount,size=… .*; in a container --shm-size\)"
    )
    with pytest.raises(UsageError, match=expected):
        SharedSegment.create(_MIB, "the tables", small_tmpfs)
    # What was refused took nothing, and what is freed can be taken.
    SharedSegment.create(_MIB // 2, "the rest", small_tmpfs).forget()
    taken.forget()
    del taken
    gc.collect()
    SharedSegment.create(_MIB, "all of it", small_tmpfs).forget()


def test_room_that_vanishes_between_the_question_and_the_reservation_is_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageError, match=r"/dev/shm is full: the tables need 4096 bytes, \d+ are"):
        SharedSegment.create(4096, "the tables")


def test_a_file_system_without_nameless_files_gives_one_whose_name_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def refusing(path: str | Path, flags: int, *rest: int, **options: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return original(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    segment = SharedSegment.create(4096, "test bytes", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(SharedSegment.open(segment.path).view) == 4096


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: No such file or directory: shared memory is"):
        SharedSegment.create(4096, "test bytes", tmp_path / "nowhere")


_HOLDER = """
    import sys, time
    from pathlib import Path
    from engine.parallel.shared_segment import SharedSegment

    segment = SharedSegment.create(1 << 19, "the holder's bytes", Path(sys.argv[1]))
    print(segment.path, flush=True)
    time.sleep(600)
"""


def test_the_memory_of_a_killed_process_is_free_again(small_tmpfs: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_HOLDER), str(small_tmpfs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        held = os.statvfs(small_tmpfs).f_bfree
        holder.send_signal(signal.SIGKILL)
    state = os.statvfs(small_tmpfs)
    assert held * state.f_frsize == _MIB // 2
    assert state.f_bfree * state.f_frsize == _MIB
    assert list(small_tmpfs.iterdir()) == []
