"""Graphs are compiled in parallel, failures named, times estimated, interruptions repeated."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.core.op_call import Argument, OpCall
from harness.run.compile_plan import CompileEstimate, arguments_of, compile_calls, estimate


def _call(op: str, rows: int = 2) -> OpCall:
    return OpCall(op, (Argument("tensor", "bfloat16", ((rows, 4),)), Argument("scalar", "1e-06")))


def _setup(mark: str) -> Callable[[OpCall], float]:
    return functools.partial(_compile, mark)


def _compile(mark: str, call: OpCall) -> float:
    if call.op == "broken":
        raise ValueError("operand of 3 GiB does not fit")
    if call.op == "dies":
        os._exit(9)
    if call.op == "hangs":
        time.sleep(60)
    Path(mark, call.key).touch()
    return 1.5


def test_each_graph_ends_in_a_record_and_a_failing_one_is_named(tmp_path: Path) -> None:
    calls = [_call("fine"), _call("broken"), _call("dies"), _call("hangs")]
    setup = functools.partial(_setup, str(tmp_path))
    found = dict(
        compile_calls(
            calls, setup, jobs=2, time_limit_s=8, backend="interpret", versions={"nki": "0.7"}
        )
    )
    assert found[calls[0]].status == "OK"
    assert found[calls[0]].seconds == 1.5
    assert found[calls[0]].versions == {"nki": "0.7"}
    assert "3 GiB does not fit" in found[calls[1]].message
    assert "exit code 9" in found[calls[2]].message
    assert "no result within 8 s" in found[calls[3]].message
    assert [found[call].status for call in calls[1:]] == ["FAILED"] * 3
    assert found[calls[1]].label == "broken(bfloat16[2x4], 1e-06)"
    assert [path.name for path in tmp_path.iterdir()] == [calls[0].key]


def test_the_estimate_takes_the_op_s_own_median_over_the_jobs() -> None:
    earlier = [
        {"op": "a", "status": "OK", "seconds": 10.0},
        {"op": "a", "status": "OK", "seconds": 30.0},
        {"op": "b", "status": "OK", "seconds": 5.0},
        {"op": "b", "status": "FAILED", "seconds": None},
    ]
    found = estimate([_call("a"), _call("b"), _call("new")], earlier, jobs=2)
    assert found == CompileEstimate(3, 2, (20.0 + 5.0 + 10.0) / 2)
    assert str(found) == "3 graphs (2 of them known), about 0.3 min"
    assert str(estimate([_call("a")], [], 2)) == "1 graphs, no earlier record to estimate from"


def test_values_have_the_shapes_and_kinds_of_the_call() -> None:
    call = OpCall(
        "linear_fp4_grouped",
        (
            Argument("tensor", "bfloat16", ((3, 64),)),
            Argument("quantised", "fp4", ((2, 8, 32), (2, 8, 2))),
            Argument("tensor", "int64", ((2,),)),
        ),
    )
    x, weight, sizes = arguments_of(call)
    assert (x.shape, x.dtype) == ((3, 64), torch.bfloat16)
    assert (weight.layout, weight.codes.shape, int(weight.scale.max())) == ("fp4", (2, 8, 32), 127)
    assert sizes.tolist() == [2, 1]


def test_keys_tell_calls_apart_and_last_over_processes() -> None:
    assert _call("a").key != _call("a", rows=3).key != _call("b").key
    assert _call("a").with_rows(7, (0,)) == _call("a", rows=7)


@pytest.mark.parametrize("text", ["'accumulate'", "None", "0.5", "True", "(1, 2)"])
def test_scalars_come_back_as_they_were(text: str) -> None:
    (value,) = arguments_of(OpCall("x", (Argument("scalar", text),)))
    assert repr(value) == text
