"""The run directory: `runs/<run id>/run.json` and one append-only JSONL ledger a kind.

Every record is fsynced before `append` returns, so a killed run loses nothing it reported. The
last record of a key wins. A last line that a crash cut short is dropped with a notice; a broken
line anywhere else is an InputError, because nobody but a person can have made it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.core.errors import InputError, UsageError
from harness.core.record import KINDS, RunRecord, strict_json, to_plain
from harness.run.clock import Clock, SystemClock

__all__ = ["Ledger", "LedgerContent", "RunStore", "new_run", "open_run", "read_ledger", "read_run"]

_RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """What a ledger holds.

    Attributes:
        records: in order of first appearance; of each key the last one written.
        notices: one line a thing that was dropped.
        num_superseded: records that a later one of the same key replaced.
    """

    records: tuple[RunRecord, ...] = ()
    notices: tuple[str, ...] = ()
    num_superseded: int = 0

    def by_key(self) -> dict[str, RunRecord]:
        """key -> record."""
        return {record.key: record for record in self.records}


def read_ledger(path: Path) -> LedgerContent:
    """Read one ledger; a missing file is an empty one.

    Raises:
        InputError: a line that is not a record and not the cut last one.
    """
    if not path.exists():
        return LedgerContent()
    lines, torn = _split_lines(path.read_bytes())
    latest: dict[str, RunRecord] = {}
    for number, line in enumerate(lines, start=1):
        record = RunRecord.from_line(_decoded(line, path, number), file=path, number=number)
        latest[record.key] = record
    notices = (f"{path}: the last line was cut short by a crash and is dropped",) if torn else ()
    return LedgerContent(tuple(latest.values()), notices, len(lines) - len(latest))


def _split_lines(content: bytes) -> tuple[list[bytes], bool]:
    """Complete lines, and whether a torn one follows them."""
    body, _, tail = content.rpartition(b"\n")
    lines = body.split(b"\n") if body else []
    if not tail:
        return lines, False
    if _is_json(tail):  # only its newline is missing: the record is whole
        return [*lines, tail], False
    return lines, True


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, f"line {number}", line[:40], "not UTF-8; restore it") from error


@dataclass(slots=True)
class Ledger:
    """Appends to one ledger file; holds its lock until closed.

    Raises:
        UsageError: the file cannot be opened, or another process is appending to it.
    """

    path: Path
    _descriptor: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._mend_tail()
        except BlockingIOError as error:
            self.close()
            raise UsageError(
                f"{self.path}: another process is writing this ledger; wait for it or choose "
                "another --out"
            ) from error
        _sync_directory(self.path.parent)

    def _mend_tail(self) -> None:
        """Cut a torn last line off, or end a whole one, so that the next record stands alone."""
        content = self.path.read_bytes()
        if not content or content.endswith(b"\n"):
            return
        if _split_lines(content)[1]:
            os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)
        else:
            os.write(self._descriptor, b"\n")

    def append(self, *records: RunRecord) -> None:
        """Write records and wait until the disk has them."""
        lines = "".join(record.to_line() + "\n" for record in records)
        remaining = memoryview(lines.encode("utf-8"))
        try:
            while remaining:
                remaining = remaining[os.write(self._descriptor, remaining) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        """Release the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(slots=True)
class RunStore:
    """One run's directory, open for appending. A context manager.

    Attributes:
        directory: `<root>/<run id>`.
        environment: fingerprint copied into every record.
    """

    directory: Path
    run_id: str
    environment: Mapping[str, Any]
    clock: Clock = field(default_factory=SystemClock)
    _ledgers: dict[str, Ledger] = field(default_factory=dict, repr=False)

    def append(self, kind: str, key: str, payload: object) -> RunRecord:
        """Record one verdict or measurement (a dataclass or a mapping) under its key."""
        return self.append_all(kind, {key: payload})[0]

    def append_all(self, kind: str, payloads: Mapping[str, object]) -> list[RunRecord]:
        """Record derived results, key -> payload, with one wait for the disk."""
        records = [self._record(kind, key, payload) for key, payload in payloads.items()]
        if kind not in self._ledgers:
            self._ledgers[kind] = Ledger(self.path(kind))
        self._ledgers[kind].append(*records)
        return records

    def plan(self, kind: str, keys: Sequence[str]) -> None:
        """State which records of a kind will follow, so that a lost one is missed."""
        self.append("plan", kind, {"kind": kind, "keys": list(keys)})

    def _record(self, kind: str, key: str, payload: object) -> RunRecord:
        body = to_plain(payload)
        if kind not in KINDS or not isinstance(body, dict):
            raise ValueError(f"a record has a kind of {KINDS} and a mapping, not {kind!r} {body!r}")
        created = self.clock.now().isoformat(timespec="milliseconds")
        return RunRecord(kind, self.run_id, key, created, self.environment, body)

    def path(self, kind: str) -> Path:
        """The ledger of a kind."""
        return self.directory / f"{kind}.jsonl"

    def read(self, kind: str) -> LedgerContent:
        """What this run already recorded of a kind."""
        return read_ledger(self.path(kind))

    def close(self) -> None:
        """Release every ledger; idempotent."""
        while self._ledgers:
            self._ledgers.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def new_run(
    root: Path,
    *,
    command: Sequence[str],
    environment: Mapping[str, Any],
    run_id: str = "",
    clock: Clock | None = None,
) -> RunStore:
    """Create `<root>/<run id>/` and its run.json; nothing was computed yet if this fails.

    Args:
        root: the directory of all runs; made if absent.
        command: the command line as typed.
        run_id: a name of the caller's; without it, UTC time and four random hex digits.

    Raises:
        UsageError: the directory cannot be written, or the run exists already.
    """
    clock = clock or SystemClock()
    start = clock.now()
    run_id = run_id or f"{start:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    directory = root / run_id
    try:
        root.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
        _write_run_file(directory, run_id, command, start.isoformat(), environment)
    except FileExistsError as error:
        if directory.is_dir():
            raise UsageError(f"{directory}: this run exists; choose another run id") from error
        raise _unwritable(root, error) from error
    except OSError as error:
        raise _unwritable(root, error) from error
    return RunStore(directory, run_id, environment, clock)


def open_run(
    directory: Path, *, environment: Mapping[str, Any], clock: Clock | None = None
) -> RunStore:
    """Open an existing run to append to it (resume).

    Raises:
        InputError: there is no run.json, or it is broken.
    """
    return RunStore(directory, read_run(directory)["run_id"], environment, clock or SystemClock())


def read_run(directory: Path) -> dict[str, Any]:
    """run.json of a run: run_id, command, start, environment.

    Raises:
        InputError: it is missing or broken.
    """
    path = directory / _RUN_FILE
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            path, "file", error.strerror, "name a directory that a run has written"
        ) from error
    except ValueError as error:
        raise InputError(path, "content", str(error), "not JSON; restore the file") from error
    if not isinstance(body, dict) or not isinstance(body.get("run_id"), str):
        raise InputError(path, "run_id", body, "run.json holds an object with a run_id")
    return body


def _write_run_file(
    directory: Path,
    run_id: str,
    command: Sequence[str],
    start: str,
    environment: Mapping[str, Any],
) -> None:
    text = strict_json(
        {"run_id": run_id, "command": list(command), "start": start, "environment": environment}
    )
    with (directory / _RUN_FILE).open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    """A new file's name is durable only once its directory is synced too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written ({error.strerror}); choose a writable directory with --out"
    )
