"""Prompt lengths at which something in the engine changes (measurement.md §2)."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig

__all__ = ["boundary_lengths"]


def boundary_lengths(config: ModelConfig, limits: EngineLimits, num_tokens: int) -> dict[int, str]:
    """Length -> what lies there: one below, at and one above every border, ascending.

    Args:
        num_tokens: to be generated after the prompt; lengths that leave no room for them are left
            out, and the longest prompt that does is added.
    """
    room = limits.max_model_len - num_tokens
    found: dict[int, list[str]] = {1: ["one-token"]}
    for name, border in _borders(config, limits):
        for offset, sign in ((-1, "-1"), (0, ""), (1, "+1")):
            found.setdefault(border + offset, []).append(f"{name}{sign}")
    found.setdefault(room, []).append("longest")
    return {
        length: " ".join(dict.fromkeys(found[length]))
        for length in sorted(found)
        if 1 <= length <= room
    }


def _borders(config: ModelConfig, limits: EngineLimits) -> Iterator[tuple[str, int]]:
    yield "window", config.window
    yield "page", limits.page_size
    for ratio in sorted(set(config.ratios) - {0, 1}):
        yield f"ratio-{ratio}", ratio
    yield "bucket", limits.token_bucket
    for rows in limits.prefill_buckets:
        yield "prefill-bucket", rows
    for context in limits.context_buckets:
        yield "context", context
    source = config.index.candidate_source
    if source is not None:
        entries = config.index.candidate_blocks * config.index.candidate_block_size
        yield "candidates", entries * config.ratios[source]
