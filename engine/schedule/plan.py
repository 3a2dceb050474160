"""The host's description of one step, the same for every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.schedule.choice import DraftChoice

__all__ = [
    "NO_TOKENS",
    "AttentionPath",
    "DraftPlan",
    "DraftSequence",
    "SequenceChunk",
    "StepPlan",
]

AttentionPath = Literal["decode", "prefill"]
"""How a step attends: rows gathered for each token, or tiles of rows that tokens share."""


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """Consecutive tokens of one sequence.

    Attributes:
        slot: where its window ring and compressor tail live.
        start: position of the first token.
        token_ids: the tokens.
        history: up to max_ngram - 1 tokens before `start`, oldest first.
        pages: its page table, long enough for every position of the chunk.
        num_logits: how many of the last rows need logits.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    history: tuple[int, ...]
    pages: tuple[int, ...]
    num_logits: int

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.token_ids)


NO_TOKENS = SequenceChunk(slot=0, start=0, token_ids=(), history=(), pages=(0,), num_logits=0)
"""Fills a step up: it reads slot 0 and the scratch page, and no row is its own."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step over ragged chunks.

    Attributes:
        step: counts up from 0 within an engine.
        chunks: at least one.
        padded_rows: rows the step is padded to.
        context: context bucket in tokens, at least the longest sequence's end.
        want_logits: whether the first rank returns the logits, not only the ids; every rank then
            samples, so that ranks can be compared.
        path: "prefill" holds prompt rows only.
        num_top: of each logits row, so many best tokens are returned by rank 0; 0: none.
        has_prompt_rows: whether any row, of this batch or another, is of a prompt.
    """

    step: int
    chunks: tuple[SequenceChunk, ...]
    padded_rows: int
    context: int
    want_logits: bool
    path: AttentionPath = "decode"
    has_prompt_rows: bool = False
    num_top: int = 0

    @property
    def num_rows(self) -> int:
        """Real rows."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class DraftSequence:
    """Where one sequence's draft block starts.

    Attributes:
        slot: as in SequenceChunk.
        position: last committed position.
        token: sampled for `position + 1`, not yet computed.
        choice: how its drafts are drawn; None takes the greedy ones.
    """

    slot: int
    position: int
    token: int
    choice: DraftChoice | None = None


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """One proposal for each sequence, all of the configured block size.

    Attributes:
        padded_sequences: blocks the step is padded to, at least the number of sequences.
    """

    step: int
    sequences: tuple[DraftSequence, ...]
    padded_sequences: int = 0
