"""A checkpoint counts for verdicts only if faults show on it (measurement.md §2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.llm import LLM
from harness.core.engine_face import REFERENCE_OPS, EngineSettings
from harness.core.token_suite import Prompt
from tests.tiny_checkpoints.faults import FAULTS
from tiny_checkpoints.generator import generate

NUM_TOKENS = 80  # five windows, and twenty candidate blocks of which four are kept


def _logits(checkpoint: Path, ops: tuple[str, ...] = REFERENCE_OPS) -> np.ndarray:
    settings = EngineSettings(str(checkpoint), numerics="quantised", ops=ops, num_threads=1)
    with LLM(settings) as llm:
        ids = Prompt("p", 1, length=NUM_TOKENS, seed=4).token_ids(llm.vocab_size)
        return np.asarray(llm.score(ids), dtype=np.float64)


def _with_fault(checkpoint: Path, number: int) -> np.ndarray:
    return _logits(checkpoint, (f"tests.tiny_checkpoints.faults:FAULT_{number}",))


@pytest.fixture(scope="module")
def right(tiny_a: Path) -> np.ndarray:
    return _logits(tiny_a)


def test_logits_are_of_order_one_and_never_tie(right: np.ndarray) -> None:
    best = np.sort(right, axis=1)
    assert 0.5 < right.std() < 3
    assert (best[:, -1] - best[:, -2]).min() > 1e-4
    assert np.median(best[:, -1] - best[:, -2]) > 0.5
    # Greedy continuations do not fall into one token.
    assert len(set(right.argmax(1).tolist())) > NUM_TOKENS / 2


@pytest.mark.slow
def test_nine_of_ten_faults_change_a_token(tiny_a: Path, right: np.ndarray) -> None:
    """Logits must move beyond the strict bound for all, tokens must change for most."""
    moved, changed = [], []
    for number, name in enumerate(FAULTS):
        wrong = _with_fault(tiny_a, number)
        if np.abs(wrong - right).max() > 1e-9:
            moved.append(name)
        if (wrong.argmax(1) != right.argmax(1)).any():
            changed.append(name)
    assert sorted(set(FAULTS) - set(moved)) == []
    assert len(changed) >= 0.9 * len(FAULTS), sorted(set(FAULTS) - set(changed))


def test_tokens_hang_on_attention_and_on_experts(tiny_a: Path, right: np.ndarray) -> None:
    names = list(FAULTS)
    for fault in ("no attention", "no routed experts"):
        wrong = _with_fault(tiny_a, names.index(fault))
        share = (wrong.argmax(1) != right.argmax(1)).mean()
        assert share > 0.05, fault


def test_the_steady_checkpoint_is_blind_as_it_says(tmp_path: Path) -> None:
    steady = generate("steady", tmp_path / "steady")
    right = _logits(steady)
    names = list(FAULTS)
    for fault in ("no attention", "no routed experts"):
        wrong = _with_fault(steady, names.index(fault))
        assert (wrong.argmax(1) == right.argmax(1)).mean() > 0.9, fault
