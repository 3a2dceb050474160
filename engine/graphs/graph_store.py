"""Compiled region graphs on disk: a directory for each source and configuration.

The key is a hash of everything a graph depends on: the source of the model's code and of its ops,
the model's configuration, numerics, ranks, torch and the machine's instruction set. Within the
directory inductor keeps its own files; beside them lies one record a graph, written last, with the
hash of every file that its compilation added. A graph whose record is missing, or whose files are
not those of the record, is compiled anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from harness.core.errors import InputError

__all__ = ["CACHE_VARIABLE", "GraphStore", "cache_root"]

CACHE_VARIABLE = "NEURON_HARNESS_GRAPH_CACHE"
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
_RECORDS, _FILES, _LOCK = "graphs", "inductor", "lock"
_SHARED = "precompiled_headers"  # large, the same for all keys, and checked by inductor itself
_NOT_OURS = (_SHARED, "locks")

T = TypeVar("T")


def cache_root(environment: Mapping[str, str] | None = None) -> Path:
    """Where compiled graphs are kept: $NEURON_HARNESS_GRAPH_CACHE, else the user's cache."""
    found = os.environ if environment is None else environment
    if place := found.get(CACHE_VARIABLE):
        return Path(place)
    home = found.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "neuron-harness" / "graphs"


class GraphStore:
    """Graphs of one key.

    Args:
        root: holds a directory for each key.
        key: what the graphs depend on, part by part; kept readable beside them.

    Attributes:
        num_refused: records that did not hold and were thrown away.

    Raises:
        InputError: the directory cannot be made.
    """

    def __init__(self, root: Path, key: Mapping[str, str]) -> None:
        text = json.dumps(dict(key), sort_keys=True)
        self.directory = root / hashlib.sha256(text.encode()).hexdigest()[:16]
        self.num_refused = 0
        self._root = root
        self._key_text = text

    def compiled(self, name: str, build: Callable[[], T]) -> tuple[T, bool]:
        """What `build` gives while inductor looks into this directory, and whether it was there.

        Processes that share a directory build one after another.
        """
        self._make()
        with self._locked(), self._as_inductor_cache():
            is_known = self._holds(name)
            misses = _inductor_misses()
            before = {} if is_known else self._sizes()
            made = build()
            was_cached = is_known and _inductor_misses() == misses
            if not was_cached:
                self._record(name, before)
        return made, was_cached

    def _make(self) -> None:
        try:
            for part in (_RECORDS, _FILES):
                (self.directory / part).mkdir(parents=True, exist_ok=True)
            headers = self._root / _SHARED
            headers.mkdir(exist_ok=True)
            link = self.directory / _FILES / _SHARED
            if not link.exists():
                link.symlink_to(headers.absolute(), target_is_directory=True)
            _write_whole(self.directory / "key.json", self._key_text)
        except FileExistsError:  # another process made the link at this moment
            pass
        except OSError as error:
            raise InputError(
                self._root, "graph cache", error.strerror, f"set {CACHE_VARIABLE} to a writable one"
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / _LOCK).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _as_inductor_cache(self) -> Iterator[None]:
        earlier = os.environ.get(_INDUCTOR)
        os.environ[_INDUCTOR] = str((self.directory / _FILES).absolute())
        try:
            yield
        finally:
            if earlier is None:
                del os.environ[_INDUCTOR]
            else:
                os.environ[_INDUCTOR] = earlier

    def _holds(self, name: str) -> bool:
        """Whether the graph's record and files are whole; what is not is removed."""
        record = self._record_path(name)
        if not record.exists():
            return False
        files = _read_record(record)
        if files is not None and all(
            _digest(self.directory / _FILES / path) == digest for path, digest in files.items()
        ):
            return True
        self.num_refused += 1
        record.unlink()
        # Which other graph shares a broken file is not known: all of them start anew.
        shutil.rmtree(self.directory / _FILES)
        for other in (self.directory / _RECORDS).iterdir():
            other.unlink()
        self._make()
        return False

    def _record(self, name: str, before: Mapping[Path, int]) -> None:
        """Note the files that were added, once they are all there."""
        place = self.directory / _FILES
        added = [path for path, size in self._sizes().items() if before.get(path) != size]
        files = {str(path.relative_to(place)): _digest(path) for path in added}
        _write_whole(self._record_path(name), json.dumps({"graph": name, "files": files}))

    def _record_path(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.directory / _RECORDS / f"{digest}.json"

    def _sizes(self) -> dict[Path, int]:
        """Files of inductor's and their sizes."""
        place = self.directory / _FILES
        return {
            path: path.stat().st_size
            for path in place.rglob("*")
            if path.relative_to(place).parts[0] not in _NOT_OURS and path.is_file()
        }


def _inductor_misses() -> int:
    """Graphs inductor has not found in its cache since the process began."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_miss"])


def _read_record(path: Path) -> dict[str, str] | None:
    """path -> digest of a graph's files; None of a record that is not whole."""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if isinstance(files, dict) else None


def _digest(path: Path) -> str:
    """Of a file's content; "" where it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
