"""Sequences with answers that only the context knows: what tiny-T is trained and judged on.

A sequence starts with a marker of its family, and a family's answers lie where one kind of layer
reads: in the window, among compressed entries of ratio 2 or of ratio 1.

* loop: a string of distinct letters again and again; the next letter is the answer (induction).
* edge: a string of W random digits out of four again and again: only the position tells which
  digit comes next, and it is the oldest entry of the window (copying at a fixed lag).
* recall: pairs `Kv` of a key and its value, and queries `?K`, answered `v`. Other query marks ask
  for v under a permutation of the letters. A key that was never given is answered `-`.

Tokens are single bytes of the tokenizer: id = 3 + byte.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FAMILIES", "Family", "Task", "draw_task", "ids_of", "text_of"]

WINDOW = 16
_FIRST_BYTE_ID = 3
_KEYS, _VALUES = string.ascii_uppercase, string.ascii_lowercase
_DIGITS = "0123"
_ABSENT = "-"
# A query mark asks for the value so many letters on, in an alphabet shuffled once for all.
_MARKS = {"?": 0, "!": 7, "%": 11, "&": 17}
_ALPHABET = "qhzkdwmxbgtvsoejyriuanlcfp"
_NEVER_GIVEN_KEYS = 4

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """One sequence.

    Attributes:
        text: one character a token, the marker first.
        answers: position of an answer in the text -> distance back to what tells it, in tokens
            from the position before the answer; 0 where nothing does (an absent key).
    """

    family: str
    text: str
    answers: dict[int, int]

    @property
    def ids(self) -> list[int]:
        """Token ids of the text."""
        return ids_of(self.text)


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of sequence.

    Attributes:
        ratio: of the compressed entries that hold the answers; 0: the window does.
        distances: least and largest distance of an answer's source.
    """

    name: str
    marker: str
    ratio: int
    distances: tuple[int, int]
    draw: Callable[[Family, int, np.random.Generator], Task]


def ids_of(text: str) -> list[int]:
    """Ids of single-byte tokens."""
    return [_FIRST_BYTE_ID + ord(char) for char in text]


def text_of(ids: list[int]) -> str:
    """The text of ids; what is no printable single byte shows as a dot."""
    chars = [chr(one - _FIRST_BYTE_ID) if one >= _FIRST_BYTE_ID else "." for one in ids]
    return "".join(char if "!" <= char <= "~" else "." for char in chars)


def draw_task(family: Family, length: int, rng: np.random.Generator) -> Task:
    """A sequence of `length` tokens."""
    return family.draw(family, length, rng)


def permuted(value: str, mark: str) -> str:
    """The answer to a query of `value` under a mark."""
    place = _ALPHABET.index(value)
    return _ALPHABET[(place + _MARKS[mark]) % len(_ALPHABET)]


def _loop(family: Family, length: int, rng: np.random.Generator) -> Task:
    low, high = family.distances
    period = int(rng.integers(low, min(high, length // 2) + 1)) + 1
    letters = rng.permutation(list(_KEYS + _VALUES))[:period]
    return _repeated(family, "".join(letters), length)


def _edge(family: Family, length: int, rng: np.random.Generator) -> Task:
    digits = rng.choice(list(_DIGITS), WINDOW)
    return _repeated(family, "".join(digits), length)


def _repeated(family: Family, unit: str, length: int) -> Task:
    text = (family.marker + unit * (length // len(unit) + 1))[:length]
    answers = {at: len(unit) - 1 for at in range(1 + len(unit), length)}
    return Task(family.name, text, answers)


def _recall(family: Family, length: int, rng: np.random.Generator) -> Task:
    keys = list(rng.permutation(list(_KEYS)))
    absent = [keys.pop() for _ in range(_NEVER_GIVEN_KEYS)]
    text, answers = family.marker, {}
    values: dict[str, str] = {}
    told_at: dict[str, int] = {}
    low, high = family.distances
    while len(text) < length:
        # The row that asks stands at len(text) + 1: mark, key, answer.
        reach = {key: len(text) + 1 - at for key, at in told_at.items()}
        known = [key for key, distance in reach.items() if low <= distance <= high]
        forgotten = [key for key, distance in reach.items() if distance > 2 * WINDOW]
        free = keys or (forgotten if family.ratio == 0 else [])
        if known and (rng.random() < 0.6 or not free):
            mark = str(rng.choice(list(_MARKS)))
            if rng.random() < 0.12:
                key, answer, distance = str(rng.choice(absent)), _ABSENT, 0
            else:
                key = str(rng.choice(known))
                answer, distance = permuted(values[key], mark), reach[key]
            text += mark + key + answer
            answers[len(text) - 1] = distance
        elif free:
            key = free.pop(int(rng.integers(len(free))))
            values[key] = str(rng.choice(list(_VALUES)))
            text += key + values[key]
            told_at[key] = len(text) - 1
        else:
            text += str(rng.choice(list(_DIGITS)))
    answers = {at: distance for at, distance in answers.items() if at < length}
    return Task(family.name, text[:length], answers)


_FAMILIES = (
    Family("loop-near", "<", 0, (5, 13), _loop),
    Family("edge", "=", 0, (15, 15), _edge),
    Family("recall-near", "(", 0, (1, 15), _recall),
    Family("loop-2", "[", 2, (17, 44), _loop),
    Family("recall-2", "{", 2, (17, 120), _recall),
    Family("loop-1", ">", 1, (17, 44), _loop),
    Family("recall-1", ")", 1, (17, 120), _recall),
)
FAMILIES = {family.name: family for family in _FAMILIES}
