"""Scores a task by teacher-forced log-likelihoods, with intervals (port.md R26)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.core.engine_face import EngineFace
from harness.core.errors import UsageError
from harness.core.evaluation import EvaluationItem, EvaluationTask, ItemScore

__all__ = ["Score", "choice_logprob", "evaluate_items", "scores_of", "wilson_interval"]

_Z_95 = 1.959963984540054

Encode = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of a task with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float
    num_items: int


def evaluate_items(
    task: EvaluationTask, engine: EngineFace, encode: Encode | None
) -> Iterator[ItemScore]:
    """Score one item after the other.

    Args:
        encode: text to ids; None where the checkpoint has no tokenizer.

    Raises:
        UsageError: text without a tokenizer, or more tokens than the engine holds.
    """
    for number, item in enumerate(task.items):
        try:
            yield _item_score(item, engine, encode)
        except UsageError as error:
            raise UsageError(f"evaluation {task.name!r}, item {number}: {error}") from error


def choice_logprob(
    logits: npt.NDArray[np.floating], ids: Sequence[int], num_context: int
) -> tuple[float, bool]:
    """Summed log-probability of ids[num_context:], and whether each of them is the likeliest.

    Args:
        logits: [len(ids), V] teacher-forced; row i is what follows ids[:i+1].
    """
    rows = logits[num_context - 1 : len(ids) - 1].astype(np.float64)
    targets = np.asarray(ids[num_context:])
    shifted = rows - rows.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(shifted, targets[:, None], axis=1)[:, 0]
    total = (chosen - np.log(np.exp(shifted).sum(axis=1))).sum()
    return float(total), bool((chosen == 0.0).all())


def scores_of(items: Sequence[ItemScore]) -> tuple[Score, ...]:
    """Accuracies where there was a choice, and the log-likelihood per token of the answers."""
    questions = [item for item in items if len(item.logprobs) > 1]
    found = []
    if questions:
        for name, right in (
            ("accuracy", [item.is_right for item in questions]),
            ("accuracy_by_length", [item.is_right_by_length for item in questions]),
        ):
            low, high = wilson_interval(sum(right), len(right))
            found.append(Score(name, sum(right) / len(right), low, high, len(right)))
    found.append(_likelihood(items))
    return tuple(found)


def wilson_interval(num_right: int, num_items: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; it stays within [0, 1] and never has width zero."""
    share, z2 = num_right / num_items, _Z_95**2
    middle = share + z2 / (2 * num_items)
    half = _Z_95 * math.sqrt(share * (1 - share) / num_items + z2 / (4 * num_items**2))
    scale = 1 + z2 / num_items
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def _likelihood(items: Sequence[ItemScore]) -> Score:
    """Mean over items of log-probability per token; normal interval over items."""
    values = np.array([item.logprobs[item.answer] / item.num_tokens[item.answer] for item in items])
    mean = float(values.mean())
    half = _Z_95 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Score("logprob_per_token", mean, mean - half, mean + half, len(values))


def _item_score(item: EvaluationItem, engine: EngineFace, encode: Encode | None) -> ItemScore:
    context = _ids(item.context, encode)
    logprobs, greedy, lengths, sizes = [], [], [], []
    for choice in item.choices:
        ids = (*context, *_ids(choice, encode))
        logprob, is_greedy = choice_logprob(engine.score(ids), ids, len(context))
        logprobs.append(logprob)
        greedy.append(is_greedy)
        lengths.append(len(ids) - len(context))
        sizes.append(len(choice.encode()) if isinstance(choice, str) else lengths[-1])
    return ItemScore(tuple(logprobs), tuple(lengths), tuple(sizes), item.answer, tuple(greedy))


def _ids(content: str | tuple[int, ...], encode: Encode | None) -> tuple[int, ...]:
    if not isinstance(content, str):
        return content
    if encode is None:
        raise UsageError("the checkpoint has no tokenizer.json: give token ids instead of text")
    return encode(content)
