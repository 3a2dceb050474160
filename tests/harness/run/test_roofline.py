"""Estimates by hand-computed bytes, operations and constants."""

from __future__ import annotations

import pytest

from harness.core.op_call import Argument, OpCall
from harness.run.microbench import Calibration, Line
from harness.run.roofline import PLANNING, CallCost, call_cost, machine_of


def _tensor(dtype: str, *shape: int) -> Argument:
    return Argument("tensor", dtype, (shape,))


def _quantised(codes: tuple[int, ...], scale: tuple[int, ...]) -> Argument:
    return Argument("quantised", "fp8_block", (codes, scale))


_TEXT = Argument("scalar", "'activation'")


def test_a_linear_reads_its_weight_once_and_multiplies_every_element() -> None:
    call = OpCall(
        "linear_fp8", (_tensor("bfloat16", 3, 64), _quantised((128, 64), (128, 2)), _TEXT)
    )
    assert call_cost(call, 3 * 128 * 2) == CallCost(
        3 * 64 * 2 + 128 * 64 + 128 * 2 + 3 * 128 * 2, 2 * 3 * 64 * 128
    )


def test_of_experts_only_those_with_a_row_are_read() -> None:
    weight = _quantised((8, 16, 32), (8, 16, 2))
    call = OpCall("linear_fp4_grouped", (_tensor("bfloat16", 2, 64), weight, _tensor("int64", 8)))
    cost = call_cost(call, 0)
    assert cost.num_bytes == 2 * 64 * 2 + (8 * 16 * 32 + 8 * 16 * 2) * 2 / 8 + 8 * 8
    assert cost.flops == 2 * 2 * 64 * 16


def test_of_a_cache_and_a_table_only_named_rows_are_read() -> None:
    attention = OpCall(
        "sparse_attention",
        (
            _tensor("bfloat16", 1, 4, 64),
            _tensor("bfloat16", 1000, 64),
            _tensor("int64", 1, 10),
            _tensor("float32", 4),
            Argument("scalar", "0.125"),
        ),
    )
    cost = call_cost(attention, 0)
    assert cost.num_bytes == 4 * 64 * 2 + 10 * 64 * 2 + 10 * 8 + 4 * 4
    assert cost.flops == 4 * 4 * 64 * 10
    lookup = OpCall("engram_lookup", (_quantised((1000, 32), (1000, 1)), _tensor("int64", 1, 6)))
    assert call_cost(lookup, 7).num_bytes == 6 * 33 + 6 * 8 + 7


def test_an_output_projection_multiplies_within_its_groups() -> None:
    # 8 heads of 64 in 4 groups, 16 rows of the weight each: 2 * 4 * 16 * (2 * 64).
    weight = _quantised((64, 128), (64, 4))
    call = OpCall(
        "output_projection", (_tensor("bfloat16", 1, 8, 64), weight, Argument("scalar", "4"))
    )
    assert call_cost(call, 0).flops == 2 * 4 * 16 * 128


def test_the_longer_of_moving_and_computing_counts_beside_the_floor() -> None:
    assert PLANNING.estimate_ns(CallCost(716_000, 79_000)) == pytest.approx(2000 + 1000)
    assert PLANNING.estimate_ns(CallCost(716, 79_000_000)) == pytest.approx(2000 + 1000)
    assert PLANNING.collective_ns(100_000, 64) == pytest.approx(18_500)
    assert PLANNING.label.startswith("uncalibrated")


def test_a_calibration_replaces_what_it_measured_and_names_its_origin() -> None:
    lines = (
        Line("launch", 1, {}, 5000.0, 0.0, 1, 0.0),
        Line("dma_rows", 1, {"row": 512}, 900.0, 0.9, 2, 0.0),
        Line("dma_rows", 1, {"row": 2048}, 700.0, 0.01, 2, 0.0),
        Line("all_gather", 64, {}, 2_000_000.0, 0.5, 3, 0.0),
    )
    machine = machine_of(Calibration("device", lines, (), {}))
    assert machine.label == "calibrated on this device"
    assert machine.estimate_ns(CallCost(1000, 0)) == pytest.approx(5010)
    assert machine.collective_ns(100, 64) == pytest.approx(2_000_050)
    assert machine.collective_ns(100, 4) == PLANNING.collective_ns(100, 4)
    for origin in ("cpu-interpreter", "stand-in"):
        label = machine_of(Calibration(origin, lines, (), {})).label
        assert label == f"uncalibrated (constants of {origin})"
