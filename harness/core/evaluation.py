"""A task that is scored by log-likelihoods, before and after it was run (port.md R26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import UsageError

__all__ = ["EvaluationItem", "EvaluationTask", "ItemScore", "StoredScore"]

# A prompt or a choice, as text or as token ids.
Content = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EvaluationItem:
    """One question: which of the choices follows the context.

    Attributes:
        choices: at least two; with one, the item only measures its likelihood.
        answer: index of the right choice.
    """

    context: Content
    choices: tuple[Content, ...]
    answer: int = 0

    def __post_init__(self) -> None:
        if not self.context or not self.choices or not all(self.choices):
            raise UsageError("an item has a context and choices, none of them empty")
        if not 0 <= self.answer < len(self.choices):
            raise UsageError(f"answer={self.answer}: it is an index of {len(self.choices)} choices")


@dataclass(frozen=True, slots=True)
class StoredScore:
    """A score somebody measured before.

    Attributes:
        name: of what was measured ("tiny-A exact").
        checkpoint_id: fingerprint of the checkpoint it belongs to; empty where unknown.
        values: metric -> value.
    """

    name: str
    values: Mapping[str, float]
    checkpoint_id: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """A file of suites/evaluations."""

    name: str
    items: tuple[EvaluationItem, ...]
    stored: tuple[StoredScore, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        if not self.items:
            raise UsageError(f"evaluation {self.name!r} has no item")


@dataclass(frozen=True, slots=True)
class ItemScore:
    """What an engine said of one item.

    Attributes:
        logprobs: natural log-probability of each choice after the context.
        num_tokens: of each choice.
        num_bytes: of each choice's text; its tokens where it was given as ids.
    """

    logprobs: tuple[float, ...]
    num_tokens: tuple[int, ...]
    num_bytes: tuple[int, ...]
    answer: int
    is_greedy: tuple[bool, ...] = field(default=())

    @property
    def is_right(self) -> bool:
        """The likeliest choice is the answer; the first of equals counts."""
        return _argmax(self.logprobs) == self.answer

    @property
    def is_right_by_length(self) -> bool:
        """The same with log-probabilities divided by length in bytes."""
        return _argmax([p / n for p, n in zip(self.logprobs, self.num_bytes, strict=True)]) == (
            self.answer
        )

    def as_record(self) -> dict[str, Any]:
        """For the ledger."""
        return {
            "logprobs": list(self.logprobs),
            "num_tokens": list(self.num_tokens),
            "answer": self.answer,
            "is_greedy": list(self.is_greedy),
        }


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda index: (values[index], -index))
