"""`python -m scripts.train_tiny.prompts OUT.toml`: the prompts of suites/tokens/recall.toml.

Drawn from the tasks by a seed and a rule a class; the rules say where the faults of a class act.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiny_checkpoints.recall_tasks import FAMILIES, Task, draw_task, ids_of

__all__ = ["Ask", "asks", "main", "suite_text"]

_SEED = 4100
_PER_CLASS = 4
_LENGTH = 97
_WINDOW, _CHUNK = 16, 7

Rule = Callable[[str, int, int], bool]


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt of a class, and what a model that recalls must say.

    Attributes:
        prompt: text before the first answer.
        answer: text of the answers.
    """

    name: str
    prompt: str
    answer: str


# class -> (family, prompt length, tokens to generate): the string has begun its second round.
_LOOPS: dict[str, tuple[str, int, int]] = {
    "edge": ("edge", 40, 16),
    "near": ("loop-near", 40, 16),
    # Within the first window: rows whose window has room for what should not be there.
    "early": ("loop-near", 10, 16),
    # The prompt fills its last token bucket.
    "bucket": ("loop-near", 48, 24),
    "behind-2": ("loop-2", 56, 40),
    "behind-1": ("loop-1", 56, 40),
}
# class -> (family, which answer: (query mark, position, distance) -> whether it serves)
_QUERIES: dict[str, tuple[str, Rule]] = {
    "ask-near": ("recall-near", lambda _, at, back: at > 40 and back > 0),
    # Under a mark other than `?` the answer is another letter than the one that was given.
    "ask-moved": ("recall-near", lambda mark, at, back: mark != "?" and at > 40 and back > 0),
    "ask-2": ("recall-2", lambda _, at, back: at > 40 and back > 0),
    "ask-1": ("recall-1", lambda _, at, back: at > 40 and back > 0),
    "ask-far": ("recall-1", lambda *found: found[2] >= 48),
    "ask-absent": ("recall-near", lambda _, at, back: at > 40 and back == 0),
    # Within the first window: rows whose window has room for what should not be there.
    "ask-early": ("recall-near", lambda _, at, back: 6 < at < _WINDOW and back > 0),
    # The value stands where chunks of seven cut its group of two.
    "ask-cut": (
        "recall-2",
        lambda _, at, back: back > 0 and (at - 1 - back) % (2 * _CHUNK) == _CHUNK - 1,
    ),
}


def asks() -> Iterator[Ask]:
    """Every prompt, in the suite's order."""
    for name, (family, length, num_tokens) in _LOOPS.items():
        begun = (task for task in _tasks(name, family) if _period(task) + 3 <= length)
        for number, task in enumerate(begun, start=1):
            text = _whole_round(task, length + num_tokens)
            yield Ask(f"{name}-{number}", text[:length], text[length:])
            if number == _PER_CLASS:
                break
    for name, (family, serves) in _QUERIES.items():
        number = 0
        for task in _tasks(name, family):
            found = [at for at, back in task.answers.items() if serves(task.text[at - 2], at, back)]
            if found and number < _PER_CLASS:
                number += 1
                at = found[0]
                yield Ask(f"{name}-{number}", task.text[:at], task.text[at])
            if number == _PER_CLASS:
                break


def _tasks(name: str, family: str) -> Iterator[Task]:
    rng = np.random.default_rng([_SEED, *map(ord, name)])
    while True:
        yield draw_task(FAMILIES[family], _LENGTH, rng)


def _period(task: Task) -> int:
    return min(task.answers) - 1


def _whole_round(task: Task, length: int) -> str:
    """The repeated string at `length` tokens."""
    period = _period(task)
    unit = task.text[1 : 1 + period]
    return (task.text[0] + unit * (length // period + 1))[:length]


_HEAD = """\
description = "what tiny-T recalls, by where the answer lies (scripts/train_tiny/prompts.py)"
checkpoint = "tiny-T"
"""
_TAIL = """
[settings.exact]
numerics = "exact"

[settings.exact-cp2]
numerics = "exact"
cp = 2

[settings.fast]
numerics = "fast"

[settings.fast-cp2] # the same sums in another order: split over two ranks
numerics = "fast"
cp = 2

[settings.fast-cp4]
numerics = "fast"
cp = 4

[[pairs]]
name = "exact-cp2"
candidate = "exact-cp2"
oracle = "exact"
judge = "equal"
logit_bound = 1e-9

[[pairs]]
name = "fast-cp4"
candidate = "fast-cp4"
oracle = "fast"
judge = "near_tie"
noise = ["fast-cp2"]
"""


def suite_text() -> str:
    """The suite as TOML."""
    blocks = [_HEAD]
    for ask in asks():
        ids = ", ".join(map(str, ids_of(ask.prompt)))
        blocks.append(
            f'[[prompts]]\nname = "{ask.name}" # {ask.prompt} -> {ask.answer}\n'
            f"ids = [{ids}]\nmax_tokens = {len(ask.answer)}\n"
        )
    return "\n".join(blocks) + _TAIL


def main() -> None:
    """Write the suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.parse_args().out.write_text(suite_text(), "utf-8")


if __name__ == "__main__":
    main()
