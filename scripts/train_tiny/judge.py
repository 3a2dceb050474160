"""`python -m scripts.train_tiny.judge CHECKPOINT OUT.json`: what the files know, by the engine.

Every answer of fresh tasks, by family and by distance, in each mode of numerics; and how many of
them `fast` changes: against `exact`, and against itself with its sums split over two ranks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.llm import LLM
from harness.core.engine_face import EngineSettings
from tiny_checkpoints.config_files import write_json
from tiny_checkpoints.recall_tasks import FAMILIES, WINDOW, Task, draw_task

__all__ = ["Answers", "answers_of", "band_of", "fresh_tasks", "judged", "main"]

_LENGTH = 128
_SEED = 2026
_MODES = {
    "exact": {"numerics": "exact"},
    "quantised": {"numerics": "quantised"},
    "trn2": {"numerics": "trn2"},
    "fast": {"numerics": "fast"},
    "fast, sums over two ranks": {"numerics": "fast", "cp": 2},
}
# A candidate source keeps 4 blocks of 4 entries of ratio 1, the newest pinned.
_CANDIDATE_REACH = 48


@dataclass(frozen=True, slots=True)
class Answers:
    """Chosen ids and margins at every answer, in the order of tasks and positions."""

    ids: npt.NDArray[np.int64]
    margins: npt.NDArray[np.float64]


def fresh_tasks(per_family: int, seed: int = _SEED) -> list[Task]:
    """Tasks that no training batch has drawn."""
    rng = np.random.default_rng([seed, 77])
    return [
        draw_task(family, _LENGTH, rng) for family in FAMILIES.values() for _ in range(per_family)
    ]


def band_of(distance: int) -> str:
    """How far back an answer's source is."""
    if distance == 0:
        return "absent key"
    if distance < WINDOW:
        return "in the window"
    return "behind it" if distance < _CANDIDATE_REACH else "far behind it"


def answers_of(engine: LLM, tasks: list[Task]) -> Answers:
    """What the engine says at every answer, given the sequence before it."""
    ids, margins = [], []
    for task in tasks:
        logits = np.asarray(engine.score(task.ids), np.float64)
        for at in task.answers:
            row = logits[at - 1]
            best, second = np.sort(row)[-1], np.sort(row)[-2]
            ids.append(int(row.argmax()))
            margins.append(float(best - second))
    return Answers(np.array(ids), np.array(margins))


def judged(checkpoint: Path, per_family: int) -> dict[str, Any]:
    """Accuracy by mode, family and distance, flips and margins."""
    tasks = fresh_tasks(per_family)
    right = np.array([task.ids[at] for task in tasks for at in task.answers])
    groups = [(task.family, band_of(d)) for task in tasks for d in task.answers.values()]
    answers: dict[str, Answers] = {}
    for name, fields in _MODES.items():
        settings = EngineSettings(str(checkpoint), num_threads=1, **fields)  # type: ignore[arg-type]
        opened = LLM.in_one_process if settings.cp > 1 else LLM
        with opened(settings) as engine:
            answers[name] = answers_of(engine, tasks)
    exact, fast = answers["exact"], answers["fast"]
    split = answers["fast, sums over two ranks"]
    return {
        "num_tasks": len(tasks),
        "num_answers": len(right),
        "accuracy": {name: _accuracy(one.ids == right, groups) for name, one in answers.items()},
        "flip_share": {
            "fast against exact": float((fast.ids != exact.ids).mean()),
            "fast against fast with split sums": float((fast.ids != split.ids).mean()),
        },
        "margin_quantiles": {
            str(q): round(float(np.quantile(exact.margins, q)), 3) for q in (0.01, 0.1, 0.5)
        },
    }


def _accuracy(
    is_right: npt.NDArray[np.bool_], groups: list[tuple[str, str]]
) -> Mapping[str, Mapping[str, str]]:
    found: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for group, right in zip(groups, is_right.tolist(), strict=True):
        found[group].append(right)
    table: dict[str, dict[str, str]] = defaultdict(dict)
    for (family, band), ones in sorted(found.items()):
        table[family][band] = f"{sum(ones)}/{len(ones)}"
    return table


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-family", type=int, default=8)
    chosen = parser.parse_args()
    write_json(chosen.out, judged(chosen.checkpoint, chosen.per_family))
    print(chosen.out.read_text("utf-8"))


if __name__ == "__main__":
    main()
