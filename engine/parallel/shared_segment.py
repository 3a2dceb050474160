"""Memory that the processes of one host share and that no crash can leave behind.

A segment is a file of /dev/shm without a name (O_TMPFILE; where the file system has none of
these, a file whose name is removed before it gets a byte). The kernel frees it with its last
descriptor and mapping, whoever was killed in which order; two engines cannot meet in a name.
Other processes open it through the creator's entry in /proc, as long as the creator holds it.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from pathlib import Path

from harness.core.errors import UsageError

__all__ = ["SHARED_DIRECTORY", "SharedSegment"]

SHARED_DIRECTORY = Path("/dev/shm")
_MIB = 2**20


class SharedSegment:
    """A mapped, zeroed piece of shared memory.

    Attributes:
        path: where other processes of this user open it; "" of a segment that was opened.
        view: the whole of it, writable.

    Use `create` or `open`. The mapping ends with the last view or tensor that uses it.
    """

    def __init__(self, descriptor: int, num_bytes: int, path: str) -> None:
        self._descriptor: int | None = descriptor
        self._purpose, self._directory = "", SHARED_DIRECTORY
        self.path = path
        self.view = memoryview(mmap.mmap(descriptor, num_bytes))

    @classmethod
    def create(
        cls,
        num_bytes: int,
        purpose: str,
        directory: Path = SHARED_DIRECTORY,
        *,
        reserved_bytes: int | None = None,
    ) -> SharedSegment:
        """A new segment; what is reserved of it is taken now, so that writing cannot fail.

        Args:
            num_bytes: at least 1.
            purpose: what it is for, as the message on a full file system says it.
            reserved_bytes: None for all; the rest waits for `reserve`.

        Raises:
            UsageError: too little is free; names the needed and the free bytes and the remedy.
        """
        descriptor = _nameless_file(directory)
        try:
            os.ftruncate(descriptor, num_bytes)
            segment = cls(descriptor, num_bytes, f"/proc/{os.getpid()}/fd/{descriptor}")
        except BaseException:
            os.close(descriptor)
            raise
        try:
            segment._purpose, segment._directory = purpose, directory
            segment.reserve(0, num_bytes if reserved_bytes is None else reserved_bytes)
        except BaseException:
            segment.forget()
            raise
        return segment

    @classmethod
    def open(cls, path: str) -> SharedSegment:
        """Map what another process created, which must still hold it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            segment = cls(descriptor, os.fstat(descriptor).st_size, "")
        finally:
            os.close(descriptor)
        segment._descriptor = None
        return segment

    def reserve(self, offset: int, num_bytes: int) -> None:
        """Take memory of a segment this process created and has not forgotten.

        Raises:
            UsageError: as `create`.
        """
        assert self._descriptor is not None
        _reserve(self._descriptor, offset, num_bytes, self._purpose, self._directory)

    def forget(self) -> None:
        """Let go of the descriptor: nobody can open it any more, mappings stay; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _nameless_file(directory: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            remedy = "shared memory is needed where ranks are processes: mount a tmpfs there"
            raise UsageError(f"{directory}: {error.strerror}: {remedy}") from error
    descriptor, name = tempfile.mkstemp(prefix="neuron-harness-", dir=directory)
    os.unlink(name)
    return descriptor


def _reserve(descriptor: int, offset: int, num_bytes: int, purpose: str, directory: Path) -> None:
    # Asked first: reserving hundreds of GiB only to give them back would take minutes.
    free = _free_bytes(descriptor)
    if free is None or free >= num_bytes:
        try:
            os.posix_fallocate(descriptor, offset, num_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            free = _free_bytes(descriptor)
        else:
            return
    missing_mib = -(-(num_bytes - (free or 0)) // _MIB)
    raise UsageError(
        f"{directory} is full: {purpose} need {num_bytes} bytes, {free} are free; remove what "
        f"is left over there, or give it room for {missing_mib} MiB more "
        f"(mount -o remount,size=… {directory}; in a container --shm-size)"
    )


def _free_bytes(descriptor: int) -> int | None:
    """None of a file system that sets no limit."""
    state = os.fstatvfs(descriptor)
    return state.f_bavail * state.f_frsize if state.f_blocks else None
