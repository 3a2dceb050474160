"""No byte of an input changes unnoticed, inside a view or around it."""

from __future__ import annotations

import pytest
import torch

from harness.core.op_axes import LAYOUTS
from harness.run.inputs import Snapshot, build_inputs
from tests.harness.run.problems import small_case


@pytest.mark.parametrize("layout", LAYOUTS)
def test_untouched_inputs_show_no_difference(layout: str) -> None:
    arguments = build_inputs(small_case("linear_fp8", layout=layout))
    assert Snapshot.of(arguments).difference(arguments) == ""


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
def test_one_changed_element_is_named(layout: str) -> None:
    arguments = build_inputs(small_case("rms_norm", layout=layout))
    before = Snapshot.of(arguments)
    arguments.values["x"][2, 7] += 1
    assert before.difference(arguments) == "input x: 1 elements changed, first (2, 7)"


def test_a_write_beside_the_view_is_caught() -> None:
    arguments = build_inputs(small_case("rms_norm", layout="offset"))
    before = Snapshot.of(arguments)
    x = arguments.values["x"]
    x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
    assert "1 elements changed, first outside the view, at element 305" in before.difference(
        arguments
    )


def test_a_change_of_nan_bits_or_of_a_weight_scale_is_caught() -> None:
    arguments = build_inputs(small_case("linear_fp8"))
    before = Snapshot.of(arguments)
    arguments.values["weight"].scale[1, 2] += 1
    assert before.difference(arguments) == "input weight.scale: 1 elements changed, first (1, 2)"


def test_a_resized_input_is_caught() -> None:
    arguments = build_inputs(small_case("rms_norm"))
    before = Snapshot.of(arguments)
    arguments.values["x"].resize_(3, 4)
    assert "changed its shape" in before.difference(arguments)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_clone_keeps_strides_and_surroundings_and_shares_nothing(layout: str) -> None:
    arguments = build_inputs(small_case("rms_norm", layout=layout))
    clone = arguments.cloned()
    original, copy = arguments.values["x"], clone.values["x"]
    assert copy.stride() == original.stride()
    assert copy.storage_offset() == original.storage_offset()
    assert torch.equal(copy, original)
    before = Snapshot.of(arguments)
    copy.untyped_storage().fill_(0)
    assert before.difference(arguments) == ""
