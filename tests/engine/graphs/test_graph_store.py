"""Compiled graphs on disk: found again, missed after a change, refused when not whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config.parse import load_model_config
from engine.graphs.graph_key import graph_key, source_digest
from engine.graphs.graph_store import CACHE_VARIABLE, GraphStore, cache_root
from engine.weights.layout import RankLayout
from harness.core.engine_face import REFERENCE_OPS
from harness.core.errors import InputError
from harness.core.numerics import EXACT, FAST
from tests.engine.oracle import directory

KEY = {"source": "a", "config": "b"}


def _compiler(calls: list[str]) -> Callable[[], str]:
    """Stands for inductor: finds its file in the cache directory, or writes it."""

    def build() -> str:
        file = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "ab" / "kernel.so"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text("machine code")
            calls.append("compiled")
        return file.read_text()

    return build


def _records(store: GraphStore) -> list[Path]:
    return list((store.directory / "graphs").iterdir())


def _kernel(store: GraphStore) -> Path:
    return store.directory / "inductor" / "ab" / "kernel.so"


def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    calls: list[str] = []
    first = GraphStore(tmp_path, KEY)
    assert first.compiled("layer", _compiler(calls)) == ("machine code", False)
    second = GraphStore(tmp_path, KEY)
    assert second.compiled("layer", _compiler(calls)) == ("machine code", True)
    assert calls == ["compiled"]
    (record,) = _records(second)
    assert json.loads(record.read_text())["graph"] == "layer"
    assert second.num_refused == 0


def test_another_key_has_a_directory_of_its_own(tmp_path: Path) -> None:
    calls: list[str] = []
    GraphStore(tmp_path, KEY).compiled("layer", _compiler(calls))
    changed = GraphStore(tmp_path, {**KEY, "source": "changed"})
    assert changed.compiled("layer", _compiler(calls)) == ("machine code", False)
    assert calls == ["compiled", "compiled"]


@pytest.mark.parametrize("content", ["", "machine cod3", None])
def test_a_damaged_file_is_refused_and_built_anew(tmp_path: Path, content: str | None) -> None:
    calls: list[str] = []
    store = GraphStore(tmp_path, KEY)
    store.compiled("layer", _compiler(calls))
    if content is None:
        _kernel(store).unlink()
    else:
        _kernel(store).write_text(content)
    assert store.compiled("layer", _compiler(calls)) == ("machine code", False)
    assert store.num_refused == 1
    assert calls == ["compiled", "compiled"]
    assert store.compiled("layer", _compiler(calls)) == ("machine code", True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"graph": "layer"}'])
def test_a_half_written_record_is_refused(tmp_path: Path, content: str) -> None:
    calls: list[str] = []
    store = GraphStore(tmp_path, KEY)
    store.compiled("layer", _compiler(calls))
    (record,) = _records(store)
    record.write_text(content)
    assert store.compiled("layer", _compiler(calls))[1] is False
    assert store.num_refused == 1


def test_a_compilation_that_fails_leaves_no_record(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, KEY)

    def failing() -> str:
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError):
        store.compiled("layer", failing)
    assert _records(store) == []
    assert store.compiled("layer", _compiler([])) == ("machine code", False)


def test_inductors_own_directory_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    GraphStore(tmp_path, KEY).compiled("layer", lambda: None)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "mine"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    GraphStore(tmp_path, KEY).compiled("layer", lambda: None)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_root_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(InputError, match=CACHE_VARIABLE):
        GraphStore(in_the_way, KEY).compiled("layer", lambda: None)


def test_the_root_is_the_variables_or_the_users_cache() -> None:
    assert cache_root({CACHE_VARIABLE: "/somewhere"}) == Path("/somewhere")
    found = cache_root({"XDG_CACHE_HOME": "/cache"})
    assert found == Path("/cache/neuron-harness/graphs")


def test_the_key_follows_source_configuration_and_numerics(tmp_path: Path) -> None:
    config = load_model_config(directory("steady_mtp"))
    layout = RankLayout(config, EXACT)
    key = graph_key(config, layout, EXACT, REFERENCE_OPS)
    assert key == graph_key(config, layout, EXACT, REFERENCE_OPS)
    assert key != graph_key(config, layout, FAST, REFERENCE_OPS)
    assert key != graph_key(load_model_config(directory("long")), layout, EXACT, REFERENCE_OPS)
    file = tmp_path / "one.py"
    file.write_text("a = 1\n")
    before = source_digest([file])
    file.write_text("a = 2\n")
    assert source_digest([file]) != before


_COMPILED_RUN = """
from engine import LLM
from tests.engine.oracle import settings

one_row = {"token_bucket": 1, "max_num_batched_tokens": 1, "enforce_eager": False}
with LLM(settings("steady_mtp", **one_row)) as llm:
    (one,) = llm.generate([[5, 6, 7]], max_tokens=2, want_logits=True)
    worker = llm.executor.worker
    print(int(llm.totals["compile_events"]), worker.num_cached_graphs, worker.num_graphs)
with LLM(settings("steady_mtp", token_bucket=1, max_num_batched_tokens=1)) as llm:
    (eager,) = llm.generate([[5, 6, 7]], max_tokens=2, want_logits=True)
print(one.token_ids == eager.token_ids, abs(one.logits - eager.logits).max() <= 1e-9)
"""


@pytest.mark.slow
def test_inductors_regions_equal_eager_and_are_read_back_by_another_process(
    tmp_path: Path,
) -> None:
    def run() -> list[str]:
        finished = subprocess.run(
            [sys.executable, "-c", _COMPILED_RUN],
            env={**os.environ, CACHE_VARIABLE: str(tmp_path)},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
            timeout=3600,
        )
        return finished.stdout.splitlines()

    # Seven kinds of layers attend in their own way, and all route alike.
    assert run() == ["8 0 8", "True True"]
    assert run() == ["0 8 8", "True True"]
