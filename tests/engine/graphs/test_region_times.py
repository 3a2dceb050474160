"""Region times: every layer once a step, parts within their layer, the table on stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from engine import LLM
from engine.config.parse import load_model_config
from engine.graphs.region_times import VARIABLE, RegionTimes, kind_of_layer, wants_region_timing
from engine.parallel.executor import SoloExecutor
from harness.core.errors import UsageError
from tests.engine.oracle import all_ids, directory, settings


def _generate(monkeypatch: pytest.MonkeyPatch) -> tuple[RegionTimes | None, list[int]]:
    with LLM(settings("steady_mtp")) as llm:
        (one,) = llm.generate([all_ids("steady_mtp", "exact")[:5]], max_tokens=3)
        executor = llm.executor
        assert isinstance(executor, SoloExecutor)
        times = executor.worker.region_times
    return times, list(one.token_ids)


def test_layers_are_counted_by_kind_and_parts_fit_into_their_layers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    times, _ = _generate(monkeypatch)
    assert times is not None
    roles = load_model_config(directory("steady_mtp")).roles
    num_steps = 3  # the prompt fits one bucket
    kinds = Counter(kind_of_layer(role) for role in roles)
    calls, total_ms = times.calls(), times.total_ms()
    assert len(kinds) > 2
    for kind, num_layers in kinds.items():
        for part in ("attention", "attention sum", "router", "experts"):
            assert calls[kind, part] == calls[kind, ""]
        assert calls[kind, ""] == num_layers * num_steps
        parts_ms = sum(ms for (region, part), ms in total_ms.items() if part and region == kind)
        assert 0 < parts_ms < total_ms[kind, ""]
    table = capsys.readouterr().err
    assert all(kind in table for kind in kinds)
    assert "  attention" in table


def test_without_the_variable_nothing_is_timed_and_tokens_are_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    plain_times, plain = _generate(monkeypatch)
    assert plain_times is None
    assert "region" not in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, "1")
    assert _generate(monkeypatch)[1] == plain


_TWO_RANKS = """
from engine import LLM
from tests.engine.oracle import settings

if __name__ == "__main__":
    with LLM(settings("steady_mtp", cp=2)) as llm:
        llm.generate([[5, 6, 7]], max_tokens=2)
"""


def test_rank_0_of_two_processes_reports_alone() -> None:
    # A process of its own: the forkserver of this one has another stderr.
    finished = subprocess.run(
        [sys.executable, "-c", _TWO_RANKS],
        env={**os.environ, VARIABLE: "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert finished.stderr.count("total ms") == 1
    roles = load_model_config(directory("steady_mtp")).roles
    (line,) = [
        row for row in finished.stderr.splitlines() if kind_of_layer(roles[0]) == row[:46].rstrip()
    ]
    same_kind = [role for role in roles if kind_of_layer(role) == kind_of_layer(roles[0])]
    assert int(line[46:].split()[0]) == 2 * len(same_kind)


def test_cleared_times_leave_an_empty_table() -> None:
    times = RegionTimes()
    twice = times.timed("a", "b", lambda x: 2 * x)
    assert twice(4) == 8
    assert times.calls() == {("a", "b"): 1}
    times.clear()
    assert times.table().splitlines()[1:] == []


@pytest.mark.parametrize(("text", "wanted"), [("", False), ("0", False), ("1", True)])
def test_the_variable_is_0_or_1(text: str, wanted: bool) -> None:
    assert wants_region_timing({VARIABLE: text}) is wanted


def test_another_value_is_refused_with_the_variable_named() -> None:
    with pytest.raises(UsageError, match="DEEPINFER_NEURON_REGION_TIMING='yes'"):
        wants_region_timing({VARIABLE: "yes"})
