"""Finding the first layer and op that part, on tensors made by hand."""

import math

import pytest
import torch

from harness.core.errors import VacuousError
from harness.run.bisect import Capture, OpCall, bisect, difference, reassembled

NORM, GEMM = OpCall(1, "rms_norm", 0), OpCall(1, "linear_fp8", 0)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def capture(*, norm=0.0, gemm=0.0, stream=0.0, rows=(4,), **more):
    outputs = {
        OpCall(0, "rms_norm", 0): [[[drawn(4, 8)]]],
        NORM: [[[drawn(4, 8) + norm]]],
        GEMM: [[[drawn(4, 6) + gemm]]],
    }
    streams = {0: drawn(4, 2, 8), 1: drawn(4, 2, 8) + stream}
    return Capture(streams, rows, outputs | more.pop("extra", {}), **more)


def test_the_first_op_of_the_first_layer_that_parts_is_named():
    found = bisect(capture(), capture(), capture(norm=1e-3, gemm=0.1, stream=0.1), fp64=True)
    assert (found.layer, found.call) == (1, NORM)
    assert found.calls[NORM].error == pytest.approx(1e-3, rel=0.3)
    assert not found.layers[0].is_beyond


def test_errors_within_four_times_the_noise_are_the_order_of_sums():
    noise = capture(norm=1e-3, gemm=1e-3, stream=1e-3)
    inside = bisect(capture(), noise, capture(norm=3e-3, gemm=3e-3, stream=3e-3), fp64=True)
    assert not inside.parts
    outside = bisect(capture(), noise, capture(stream=5e-3, gemm=5e-3), fp64=True)
    assert (outside.layer, outside.call) == (1, GEMM)


def test_an_op_is_blamed_for_what_it_does_not_for_what_it_was_given():
    wrong = capture(norm=1e-3, gemm=0.1, stream=0.1)
    found = bisect(capture(), capture(), wrong, capture(gemm=0.1), fp64=True)
    assert found.call == GEMM


def test_a_call_that_only_one_side_makes_is_named():
    extra = {OpCall(1, "swiglu", 0): [[[drawn(4, 2)]]]}
    found = bisect(capture(), capture(), capture(stream=0.1, extra=extra), fp64=True)
    assert found.unpaired == OpCall(1, "swiglu", 0)
    assert found.parts


def test_a_rank_that_left_the_others_is_a_parting():
    assert bisect(capture(), capture(), capture(desync=(1, 1)), fp64=True).parts


def test_rows_of_other_chunks_are_laid_side_by_side_where_they_are_rows_of_tokens():
    cut = capture(rows=(3, 1))
    outputs = {
        call: [[[steps[0][0][0][:3]]], [[steps[0][0][0][3:]]]]
        for call, steps in cut.outputs.items()
    }
    chunked = Capture(cut.streams, (3, 1), outputs)
    found = bisect(capture(), capture(), chunked, fp64=True)
    assert not found.parts
    outputs[GEMM][1][0][0] += 1.0
    wrong = Capture({0: cut.streams[0], 1: cut.streams[1] + 1}, (3, 1), outputs)
    assert bisect(capture(), capture(), wrong, fp64=True).call == GEMM


def test_nothing_captured_is_vacuous():
    empty = Capture({}, (), {})
    with pytest.raises(VacuousError, match="nothing was captured"):
        bisect(empty, empty, empty, fp64=True)


def test_shards_are_put_together_again():
    whole = drawn(4, 8)
    assert torch.equal(reassembled(whole.chunk(2, dim=1), whole), whole)
    assert torch.equal(reassembled(whole.split([1, 3]), whole), whole)
    gate_up = [
        torch.cat([whole[:, :2], whole[:, 4:6]], 1),
        torch.cat([whole[:, 2:4], whole[:, 6:]], 1),
    ]
    assert torch.equal(reassembled(gate_up, whole), whole)
    assert torch.allclose(reassembled([whole - 1, torch.ones(4, 8)], whole), whole)
    assert reassembled([whole, whole.clone()], whole) is not None
    assert reassembled([whole[:3], whole[:3]], whole) is None


def test_copies_that_differ_are_not_taken_for_one():
    ids = torch.tensor([1, 2, 3])
    assert reassembled([ids, ids + 1], ids) is None
    whole = drawn(4, 8)
    assert difference(whole, reassembled([whole, whole + 1e-6], whole)) > 0.9


@pytest.mark.parametrize(
    ("right", "other", "expected"),
    [
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]), math.inf),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), 0.0),
        (torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5]), 0.25),
        (torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0]), math.sqrt(12.5)),
        (torch.ones(2), torch.ones(3), math.inf),
    ],
)
def test_difference(right, other, expected):
    assert difference(right, other) == pytest.approx(expected)
