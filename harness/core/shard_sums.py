"""SHA-256 of a checkpoint's shards, in a file beside them that `sha256sum -c` reads too.

Safetensors carry no checksum of their data: header, lengths and shapes stay right when a bit of a
weight flips. Checkpoints this project writes therefore get a SHA256SUMS; one from elsewhere has
none unless its owner made it (`sha256sum *.safetensors > SHA256SUMS`), and is then not hashed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.core.errors import InputError

__all__ = ["SUMS_FILE", "has_sums", "verify_sums", "write_sums"]

SUMS_FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(\S.*)")
_MAKE_SUMS = (
    f"write it anew (`sha256sum *.safetensors > {SUMS_FILE}`) once the shards are known good"
)
_MAX_THREADS = 8  # hashing lets go of the interpreter's lock
# A file written again within a tick of the clock keeps its time: what is younger is not remembered.
_SETTLED_NS = 2 * 10**9

_Identity = tuple[int, ...]
_known_hashes: dict[tuple[Path, _Identity], str] = {}


def has_sums(directory: Path | str) -> bool:
    """Whether hashes stand beside the shards."""
    return os.path.lexists(Path(directory) / SUMS_FILE)


def write_sums(directory: Path | str) -> None:
    """Hash every .safetensors file of a directory; whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    place = Path(directory)
    hashes = _hashes(sorted(place.glob("*.safetensors")))
    text = "".join(f"{digest}  {path.name}\n" for path, digest in hashes.items())
    descriptor, partial = tempfile.mkstemp(prefix=f".{SUMS_FILE}.", dir=place)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(partial, 0o644)
        os.replace(partial, place / SUMS_FILE)
    except BaseException:
        os.unlink(partial)
        raise


def verify_sums(directory: Path | str, shards: Iterable[Path]) -> None:
    """Compare shards with the hashes beside them, which must be there (`has_sums`).

    A file whose size and times are those of an earlier call of this process is not read again.

    Args:
        shards: files within the directory; what the hashes name beyond them is not read.

    Raises:
        InputError: a shard differs, is absent or has no hash, or the hashes are unreadable: names
            file, what is wrong and the remedy.
    """
    place = Path(directory)
    expected = _read_sums(place / SUMS_FILE)
    chosen = sorted(set(shards))
    for shard in chosen:
        if not shard.is_file():
            raise InputError(shard, "shard", "absent", "copy the missing shard, or make all again")
        if shard.relative_to(place).as_posix() not in expected:
            raise InputError(place / SUMS_FILE, f"hash of {shard.name}", "absent", _MAKE_SUMS)
    for shard, digest in _hashes(chosen).items():
        due = expected[shard.relative_to(place).as_posix()]
        if digest != due:
            raise InputError(
                shard,
                "sha256",
                digest,
                f"{SUMS_FILE} has {due}, so its bytes have changed: "
                f"`neuron-harness checkpoint verify {place}` says more; make or copy it again",
            )


def _read_sums(file: Path) -> dict[str, str]:
    """Hash by file name."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(file, "content", f"unreadable ({error})", _MAKE_SUMS) from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            remedy = f"64 hexadecimal digits, two blanks and a file's name are due; {_MAKE_SUMS}"
            raise InputError(file, f"line {number}", line, remedy)
        digest, name = match[1].lower(), match[2]
        if sums.setdefault(name, digest) != digest:
            raise InputError(file, f"line {number}", line, f"{name} has two hashes; {_MAKE_SUMS}")
    return sums


def _hashes(files: list[Path]) -> dict[Path, str]:
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
        return dict(zip(files, pool.map(_hash, files), strict=True))


def _hash(path: Path) -> str:
    known = _known_hashes.get((path, _identity(path)))
    if known is not None:
        return known
    before = _identity(path)
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if before == _identity(path) and time.time_ns() - max(before) > _SETTLED_NS:
        _known_hashes[path, before] = digest
    return digest


def _identity(path: Path) -> _Identity:
    """Device, inode, size and times in ns: a change of content changes at least one."""
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
