"""The calls listed for a matrix are those that an engine at work makes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM
from engine.config.limits import resolve_limits
from engine.config.parse import load_model_config
from engine.parallel.executor import LockstepExecutor
from engine.shapes.calls import decode_step_calls, step_calls
from engine.worker import resolve_numerics
from harness.core.engine_face import EngineSettings
from harness.core.op_call import Argument, OpCall
from harness.core.weights import QuantisedWeight
from tiny_checkpoints.generator import generate

_ROUTED = ("linear_fp4_grouped", "swiglu")


def _described(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        return Argument("tensor", str(value.dtype).split(".")[1], (tuple(value.shape),))
    if isinstance(value, QuantisedWeight):
        shapes = (tuple(value.codes.shape), tuple(value.scale.shape))
        return Argument("quantised", value.layout, shapes)
    return Argument("scalar", repr(value))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("tiny-A", tmp_path_factory.mktemp("calls") / "tiny-A")


_PATHS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefill attention": {"prefill": "attention"},
    "slots of experts": {"moe_capacity": 12},
    "drafts": {"speculative": "dspark"},
}


@pytest.mark.parametrize(
    ("path", "cp", "ep"),
    [
        ("plain", 1, 0),
        ("plain", 4, 0),
        ("plain", 1, 2),
        ("plain", 2, 4),
        ("prefill attention", 1, 0),
        ("slots of experts", 4, 0),
        ("slots of experts", 1, 2),
        ("drafts", 1, 0),
    ],
)
def test_every_call_of_a_run_is_listed(checkpoint: Path, cp: int, ep: int, path: str) -> None:
    changes = _PATHS[path]
    settings = EngineSettings(
        str(checkpoint),
        cp=cp,
        ep=ep,
        num_threads=1,
        context_buckets=(32, 64),
        max_model_len=96,
        **changes,
    )
    config = load_model_config(checkpoint)
    calls = step_calls(
        config,
        resolve_limits(settings, config),
        resolve_numerics(settings),
        cp,
        ep=ep,
        moe_capacity=settings.moe_capacity,
    )
    made: set[OpCall] = set()

    def seen(op: str, arguments: tuple[Any, ...], _: Any) -> None:
        call = OpCall(op, tuple(map(_described, arguments)))
        # A lookup is listed as the device sees it; a rank without a routed row launches nothing.
        if op != "engram_lookup" and (op not in _ROUTED or call.arguments[0].shape[0]):
            made.add(call)

    with LLM.in_one_process(settings) as llm:
        assert isinstance(llm.executor, LockstepExecutor)
        llm.executor.workers[0].ops.observer = seen
        llm.generate([list(range(3, 20))], max_tokens=4)
        (said,) = llm.generate([list(range(3, 60))], max_tokens=12)
    # How a prompt's rows fall on experts depends on the prompt: without slots only decode rows are
    # listed. A layer that overflows its slots runs again without them.
    has_reruns = settings.moe_capacity > 0 and said.counters["moe_dense_reruns"] > 0
    is_open = not settings.moe_capacity or has_reruns
    num_batches = settings.num_ranks // cp
    decode_rows = range(1, config.experts_per_token * num_batches + 1)
    open_calls = {
        call
        for call in made
        if is_open and call.op in _ROUTED and call.arguments[0].shape[0] not in decode_rows
    }
    assert {call.label for call in made - open_calls - set(calls.known)} == set()
    assert len(made - open_calls) > 30
    assert bool(calls.unknown) is not bool(settings.moe_capacity)
    assert {call.op for call in calls.unknown} <= set(_ROUTED)
    if path == "prefill attention":
        assert "prefill_attention" in {call.op for call in made & set(calls.known)}
    if settings.moe_capacity:
        slots = config.num_experts // settings.num_ranks * settings.moe_capacity
        assert slots in {call.arguments[0].shape[0] for call in made if call.op in _ROUTED}


def test_a_rank_s_routed_rows_are_listed_one_by_one(checkpoint: Path) -> None:
    settings = EngineSettings(str(checkpoint), cp=4, num_threads=1)
    config = load_model_config(checkpoint)
    calls = step_calls(
        config, resolve_limits(settings, config), resolve_numerics(settings), 4
    ).known
    grouped = {call for call in calls if call.op == "linear_fp4_grouped"}
    assert {call.arguments[0].shape[0] for call in grouped} == {1, 2}
    assert {call.arguments[2].shape for call in grouped} == {(2,)}


def test_a_draw_of_many_table_rows_never_lists_the_whole_table(checkpoint: Path) -> None:
    settings = EngineSettings(str(checkpoint), num_threads=1)
    config = load_model_config(checkpoint)
    calls = step_calls(
        config, resolve_limits(settings, config), resolve_numerics(settings), 1
    ).known
    tables = [call.arguments[0].shape[0] for call in calls if call.op == "engram_lookup"]
    assert tables
    assert all(rows in (6, 6 * 16) for rows in tables)


@pytest.mark.parametrize("cp", [1, 4])
def test_the_calls_of_a_decode_step_are_counted_as_an_engine_makes_them(
    checkpoint: Path, cp: int
) -> None:
    settings = EngineSettings(str(checkpoint), cp=cp, num_threads=1)
    config = load_model_config(checkpoint)
    counted = decode_step_calls(
        config, resolve_limits(settings, config), resolve_numerics(settings), cp, 23
    )
    made: list[str] = []
    before: list[int] = []
    with LLM.in_one_process(settings) as llm:
        executor = llm.executor
        assert isinstance(executor, LockstepExecutor)
        execute = executor.execute

        def counted_steps(plans: Any) -> Any:
            before.append(len(made))
            return execute(plans)

        executor.execute = counted_steps  # type: ignore[method-assign]
        executor.workers[0].ops.observer = lambda op, _, __: made.append(op)
        llm.generate([list(range(3, 25))], max_tokens=2)
    observed = Counter(made[before[-1] :])
    expected = Counter[str]()
    for one in counted:
        expected[one.call.op] += one.count
        assert one.output_bytes > 0
    # A rank whose experts no row met launches fewer; nothing else differs.
    for op in ("linear_fp4_grouped", "swiglu") if cp > 1 else ():
        assert 0 < observed.pop(op) <= expected.pop(op)
    assert expected == observed
