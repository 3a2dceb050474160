"""What to send when something fails: versions, configurations, records, logs, and nothing else.

Files are chosen by what they are, never by what they are not: a weight, a tensor, a prompt or a
token has no way in. Texts lose what may name a prompt's tokens and what looks like a credential.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.record import strict_json

__all__ = ["BundleEntry", "collect", "redacted_line", "write_archive"]

_RECORDS = (
    "parity.jsonl",
    "tokens.jsonl",
    "sweep.jsonl",
    "metric.jsonl",
    "gate.jsonl",
    "stage.jsonl",
    "compile.jsonl",
    "step.jsonl",
)
_CONFIGS = ("config.json", "generation_config.json", "slice.json")
_MAX_LOG_BYTES = 4 << 20
_VARIABLES = ("NEURON_", "TORCH_NEURONX_", "DEEPINFER_", "NKI_", "OMP_", "PYTHONPATH")
# Keys of records whose values are a user's prompt or what a model said to it.
_PRIVATE_KEYS = frozenset(
    {"ids", "prompt", "prompts", "prompt_ids", "text", "token_ids", "tokens"}
    | {"candidate_ids", "oracle_ids", "generated", "generated_texts", "messages"}
)
_SECRET = re.compile(
    r"(?i)(authorization|api[-_]?key|secret|password|passwd|token)(\s*[=:]\s*)(bearer\s+)?\S+"
)
_ID_OPTION = re.compile(r"(--(?:ids|prompt)[= ])(\"[^\"]*\"|'[^']*'|\S+)")
_HIDDEN = "(removed)"


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """One file of the archive."""

    name: str
    content: bytes


def collect(
    runs: Iterable[Path],
    checkpoint: Path | None,
    facts: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Iterator[BundleEntry]:
    """The bundle's files.

    Args:
        runs: run directories.
        checkpoint: whose configuration is taken; no other file of it is opened.
        facts: versions and findings.
        environment: of which only variables that set the accelerator up are kept.

    Raises:
        UsageError: a run directory does not exist, or a file cannot be read.
    """
    yield BundleEntry("facts.json", _json(facts))
    kept = {k: v for k, v in environment.items() if k.startswith(_VARIABLES)}
    yield BundleEntry("environment.json", _json(kept))
    for run in runs:
        yield from _of_run(run)
    if checkpoint is not None:
        for name in _CONFIGS:
            if (checkpoint / name).is_file():
                yield BundleEntry(f"checkpoint/{name}", _read(checkpoint / name))


def write_archive(path: Path, entries: Iterable[BundleEntry]) -> int:
    """Write a .tar.gz whole or not at all; returns the number of files.

    Raises:
        UsageError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(partial, "w:gz") as archive:
            for entry in entries:
                info = tarfile.TarInfo(entry.name)
                info.size = len(entry.content)
                archive.addfile(info, io.BytesIO(entry.content))
                count += 1
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def redacted_line(line: str) -> str:
    """A line of a log without prompts on command lines and without credentials."""
    return _SECRET.sub(lambda m: f"{m[1]}{m[2]}{_HIDDEN}", _ID_OPTION.sub(rf"\1{_HIDDEN}", line))


def _of_run(run: Path) -> Iterator[BundleEntry]:
    if not (run / "run.json").is_file():
        raise UsageError(f"{run}: no run (there is no run.json); name a run's directory")
    yield BundleEntry(f"{run.name}/run.json", _records(_read(run / "run.json")))
    for name in _RECORDS:
        if (run / name).is_file():
            yield BundleEntry(f"{run.name}/{name}", _records(_read(run / name)))
    for log in sorted(run.glob("*.log")):
        yield BundleEntry(f"{run.name}/{log.name}", _log(log))


def _records(content: bytes) -> bytes:
    """JSON lines with private values removed; a line that is no JSON is dropped, and said so."""
    lines = []
    for line in content.decode("utf-8", errors="replace").splitlines():
        try:
            lines.append(strict_json(_without_private(json.loads(line))))
        except ValueError:
            lines.append(strict_json({"dropped": "a line that is no JSON"}))
    return ("\n".join(lines) + "\n").encode()


def _without_private(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _HIDDEN if key in _PRIVATE_KEYS and item else _without_private(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_private(item) for item in _command(value)]
    return redacted_line(value) if isinstance(value, str) else value


def _command(values: list[Any]) -> list[Any]:
    """A command line as words: the word after --ids or --prompt is the prompt."""
    return [
        _HIDDEN if place and values[place - 1] in ("--ids", "--prompt") else value
        for place, value in enumerate(values)
    ]


def _log(path: Path) -> bytes:
    content = _read(path)
    head = b""
    if len(content) > _MAX_LOG_BYTES:
        head = f"(the first {len(content) - _MAX_LOG_BYTES} bytes are left out)\n".encode()
        content = content[-_MAX_LOG_BYTES:]
    lines = content.decode("utf-8", errors="replace").splitlines()
    return head + ("\n".join(map(redacted_line, lines)) + "\n").encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error


def _json(value: Any) -> bytes:
    return (strict_json(value) + "\n").encode()
