"""Reads what a run left behind: `run.json` and one JSONL file a kind. Writes nothing.

A last line that a crash cut short is dropped with a notice; of several lines with one key the
last counts; anything else that is not a record is an InputError naming file and line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, UsageError, VacuousError
from harness.core.record import KINDS, RunRecord
from reports.payloads import check_payload

__all__ = ["Entry", "Ledger", "read_run"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One record and where it stands.

    Attributes:
        file: name within the run directory, e.g. "parity.jsonl".
        line: 1-based.
    """

    record: RunRecord
    file: str
    line: int

    @property
    def payload(self) -> Mapping[str, Any]:
        return self.record.payload

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def anchor(self) -> str:
        """Id of the record within a document; safe in HTML whatever the key holds."""
        name = f"{self.record.kind} {self.record.key}".encode("utf-8", "surrogatepass")
        return f"r{hashlib.sha256(name).hexdigest()[:12]}"

    @property
    def source(self) -> str:
        """ "parity.jsonl:12"."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything one run recorded.

    Attributes:
        directory: as the caller named it.
        run: content of run.json; empty where the file is absent.
        entries: in order of first appearance, kinds in the order of KINDS.
        notices: one line a thing the reader should know (dropped or superseded lines).
    """

    directory: Path
    run: Mapping[str, Any]
    entries: tuple[Entry, ...]
    notices: tuple[str, ...] = ()
    # Rows per kind as `reports.frame` derives them, so that 2,000 points are summed up once.
    derived: dict[str, list[dict[str, Any]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def run_id(self) -> str:
        named = self.run.get("run_id")
        return str(named) if named else self.directory.resolve().name

    @property
    def environment(self) -> Mapping[str, Any]:
        """Of run.json, else of the first record."""
        stated = self.run.get("environment")
        if isinstance(stated, Mapping) and stated:
            return stated
        return self.entries[0].record.environment if self.entries else {}

    def of_kind(self, kind: str) -> tuple[Entry, ...]:
        """The records of one kind.

        Raises:
            UsageError: no such kind.
        """
        if kind not in KINDS:
            raise UsageError(f"record kind {kind!r} is not one of {', '.join(KINDS)}")
        return tuple(entry for entry in self.entries if entry.record.kind == kind)

    def require_records(self) -> Ledger:
        """Itself.

        Raises:
            VacuousError: the run recorded nothing.
        """
        if not self.entries:
            raise VacuousError(
                f"{self.directory}: the run recorded nothing; an empty run proves nothing"
            )
        return self


def read_run(directory: Path) -> Ledger:
    """Read a run directory.

    Raises:
        InputError: a file is not what a run writes; names file and line.
        UsageError: there is no such directory, or no file of a run in it.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory}: is no directory; name the directory of a run")
    files = [directory / f"{kind}.jsonl" for kind in KINDS]
    present = [path for path in files if path.exists()]
    run_file = directory / "run.json"
    if not present and not run_file.exists():
        raise UsageError(f"{directory}: holds neither run.json nor records; name a run directory")
    notices: list[str] = []
    entries = [entry for path in present for entry in _read_file(path, notices)]
    run_ids = sorted({entry.record.run_id for entry in entries})
    if len(run_ids) > 1:
        notices.append(f"the records name {len(run_ids)} runs: {', '.join(run_ids)}")
    run = _read_run_file(run_file, notices)
    return Ledger(directory, run, tuple(entries), tuple(notices))


def _read_run_file(path: Path, notices: list[str]) -> Mapping[str, Any]:
    if not path.exists():
        notices.append("run.json is missing: command and start of the run are unknown")
        return {}
    try:
        body = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(path, "content", str(error), "not JSON; restore the file") from error
    if not isinstance(body, dict):
        raise InputError(path, "content", type(body).__name__, "run.json holds one JSON object")
    return body


def _read_file(path: Path, notices: list[str]) -> Iterable[Entry]:
    latest: dict[str, Entry] = {}
    num_lines = 0
    for number, line in _lines(path, notices):
        record = RunRecord.from_line(line, file=path, number=number)
        _check_envelope(record, path, number)
        check_payload(record, path, number)
        latest[record.key] = Entry(record, path.name, number)
        num_lines += 1
    if num_lines > len(latest):
        notices.append(
            f"{path.name}: {num_lines - len(latest)} earlier writes of a key are superseded by "
            "a later one"
        )
    return latest.values()


def _lines(path: Path, notices: list[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines; a torn last one is left out."""
    body, _, tail = path.read_bytes().rpartition(b"\n")
    lines = body.split(b"\n") if body else []
    if tail and _is_json(tail):
        lines.append(tail)
    elif tail:
        notices.append(f"{path.name}: the last line was cut short by a crash and is dropped")
    for number, line in enumerate(lines, start=1):
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(path, f"line {number}", line[:40], "not UTF-8; restore it") from error


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _check_envelope(record: RunRecord, path: Path, number: int) -> None:
    where = f"line {number}"
    if record.kind != path.stem:
        raise InputError(path, f"{where}, kind", record.kind, f"this file holds {path.stem}")
    for name, value in (("key", record.key), ("run_id", record.run_id)):
        if not isinstance(value, str) or not value:
            raise InputError(path, f"{where}, {name}", value, "a text that is not empty")
    for name, mapping in (("payload", record.payload), ("environment", record.environment)):
        if not isinstance(mapping, dict):
            raise InputError(path, f"{where}, {name}", mapping, "a JSON object")
