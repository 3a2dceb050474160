"""The oracle stands alone, and its fast mode computes the same model."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

import references.oracle
from references.oracle import OracleModel
from tests.references.vectors import DIRECTORY, vectors


def imported_modules(path: Path) -> set[str]:
    """Every module a file names in an import statement, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def test_the_oracle_imports_neither_torch_nor_a_reference_op_nor_the_engine() -> None:
    files = list(Path(references.oracle.__file__).parent.glob("*.py"))
    assert len(files) >= 8
    for path in files:
        for name in imported_modules(path):
            root = name.split(".")[0]
            assert root not in {"torch", "engine", "kernels", "tiny_checkpoints"}, (path, name)
            if root == "references":
                assert name.startswith("references.oracle"), (path, name)
            if root == "harness":
                assert name == "harness.core.errors", (path, name)


def test_fast_sums_float32_and_stays_near_the_quantised_logits() -> None:
    v = vectors("steady_mtp", "quantised")
    fast, quantised = (OracleModel(v.checkpoint, mode) for mode in ("fast", "quantised"))
    ids = v.ids[:24]
    ours, golden = (model.forward(ids, model.new_state()).logits for model in (fast, quantised))
    assert ours.dtype == np.float32
    assert golden.dtype == np.float64
    assert (ours.argmax(1) == golden.argmax(1)).mean() >= 0.9
    assert 0 < np.abs(ours - golden).max() < np.abs(golden).max() / 4


def test_the_three_modes_differ() -> None:
    logits = {}
    for mode in ("exact", "quantised", "fast"):
        model = OracleModel(DIRECTORY / "steady_mtp", mode)
        logits[mode] = model.forward([5, 9, 300], model.new_state()).logits.astype(np.float64)
    assert np.abs(logits["exact"] - logits["quantised"]).max() > 1e-3
    assert np.abs(logits["fast"] - logits["quantised"]).max() > 1e-9
