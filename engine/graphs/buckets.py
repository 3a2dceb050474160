"""What the shapes of a compiled step depend on, and how many such buckets an engine can meet.

A step's rows are padded, and so are its sequences: to a power of two, by sequences without tokens.
How the rows are split among the sequences is data (StepInputs.row_sequences), so steps of several
prompts share their graphs whatever the prompts' lengths. The buckets of an engine are

    (padded rows, sequences, path) x context buckets

where rows and sequences that cannot meet are left out: a decode step without drafts, for example,
has as many padded rows as padded sequences. With 8 sequences, a token bucket of 128 and prompts as
decode there are 4 such pairs of decode steps and 7 of prompt steps, in each of 3 contexts: at most
kinds x 33 graphs. Draft stages read no context: one bucket for each number of sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.cache.step_inputs import StepInputs
from engine.config.limits import EngineLimits
from engine.schedule.plan import AttentionPath

__all__ = ["Bucket", "bucket_of", "draft_buckets", "step_buckets"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """What shapes of a step depend on: steps of one bucket run the same graphs.

    Attributes:
        num_sequences: those without tokens included.
        scopes: (ratio, entries of a sequence's scope).
    """

    padded_rows: int
    num_sequences: int
    scopes: tuple[tuple[int, int], ...]
    path: AttentionPath


_Shape = tuple[int, int, AttentionPath]
"""Padded rows, padded sequences, path."""


def bucket_of(inputs: StepInputs) -> Bucket:
    """The bucket of a step."""
    return Bucket(
        padded_rows=inputs.padded_rows,
        num_sequences=inputs.num_sequences,
        scopes=tuple((ratio, one.scope) for ratio, one in sorted(inputs.by_ratio.items())),
        path=inputs.path,
    )


def step_buckets(
    limits: EngineLimits, ratios: frozenset[int], num_batches: int = 1
) -> frozenset[Bucket]:
    """Every bucket that steps of the layers can be in.

    Args:
        ratios: compress ratios of the model, 0 excluded.
        num_batches: that step together, all padded to the widest.
    """
    shapes = {*_decode_shapes(limits), *_prompt_shapes(limits)}
    if num_batches > 1:
        shapes = set(_widened(limits, shapes))
    return frozenset(
        Bucket(rows, sequences, _scopes(context, ratios), path)
        for rows, sequences, path in shapes
        for context in limits.context_buckets
    )


def draft_buckets(limits: EngineLimits, block_size: int) -> frozenset[Bucket]:
    """Every bucket that proposals of draft blocks can be in."""
    return frozenset(
        Bucket(sequences * block_size, sequences, (), "decode")
        for sequences in _sequence_buckets(limits)
    )


def _scopes(context: int, ratios: frozenset[int]) -> tuple[tuple[int, int], ...]:
    return tuple((ratio, -(-context // ratio)) for ratio in sorted(ratios))


def _sequence_buckets(limits: EngineLimits) -> list[int]:
    every = range(1, limits.max_num_seqs + 1)
    return sorted({limits.padded_sequences(number) for number in every})


def _decode_shapes(limits: EngineLimits) -> Iterator[_Shape]:
    """One row of each sequence, and with drafts up to a block more."""
    longest = max(1, limits.backtrack)
    for number in range(1, limits.max_num_seqs + 1):
        for num_rows in range(number, number * longest + 1):
            rows = limits.padded_rows(num_rows, has_prompt_rows=False)
            yield rows, limits.padded_sequences(number), "decode"


def _prompt_shapes(limits: EngineLimits) -> Iterator[_Shape]:
    """Rows of prompts up to the budget: beside those of decoding sequences, or alone."""
    longest = max(1, limits.backtrack)
    for number in range(1, limits.max_num_seqs + 1):
        sequences = limits.padded_sequences(number)
        if limits.prefill_buckets:
            for rows in limits.prefill_buckets:
                if number <= rows:
                    yield rows, sequences, "prefill"
            continue
        most = limits.max_num_batched_tokens + (number - 1) * longest
        first = limits.padded_rows(number, has_prompt_rows=True)
        last = limits.padded_rows(most, has_prompt_rows=True)
        for rows in range(first, last + 1, limits.token_bucket):
            yield rows, sequences, "decode"


def _widened(limits: EngineLimits, shapes: set[_Shape]) -> Iterator[_Shape]:
    """A batch's own rows, or those of the widest other batch, whatever it does."""
    every = {rows for rows, _, _ in shapes}
    for path in {path for _, _, path in shapes}:
        least: dict[int, int] = {}
        for rows, sequences, own in shapes:
            if own == path:
                least[sequences] = min(rows, least.get(sequences, rows))
        # A batch without work takes part with one sequence, on the path of decode steps.
        if path == "decode":
            least[limits.padded_sequences(1)] = 1
        for sequences, first in least.items():
            yield from ((rows, sequences, path) for rows in every if rows >= first)
