"""Shards are what they were when their hashes were made, checked before a rank reads them."""

from __future__ import annotations

from pathlib import Path

from engine.weights.checkpoint import Checkpoint
from harness.core.shard_sums import has_sums, verify_sums

__all__ = ["check_shards"]


def check_shards(directory: str | Path) -> None:
    """Compare every shard the index names with the hashes beside it; once for all ranks.

    Without a SHA256SUMS there is nothing to compare with, and nothing is read. A checkpoint of
    Hugging Face has none: safetensors hold no checksum, and the hashes that the hub knows
    (`hf cache verify REPO --local-dir DIR` asks for them) do not come with the files.

    Raises:
        InputError: a shard differs, or the hashes themselves are damaged.
    """
    if not has_sums(directory):
        return
    files = Checkpoint(directory)
    try:
        verify_sums(files.directory, files.shards)
    finally:
        files.close()
