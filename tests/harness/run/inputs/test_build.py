"""Inputs are seeded, valid on their grid, and what their family and layout promise."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from harness.core.errors import UsageError
from harness.core.numerics import FAST, GOLDEN
from harness.core.op_axes import FAMILIES, LAYOUTS, OP_AXES
from harness.core.ops import OP_SHEET
from harness.core.weights import QuantisedWeight
from harness.run.inputs import OP_SCALARS, Arguments, build_inputs
from references.op_table import TABLE
from tests.harness.run.problems import AXES, small_case


def _flat(arguments: Arguments) -> dict[str, torch.Tensor]:
    return dict(arguments.tensors())


def test_every_op_of_the_sheet_has_a_builder_axes_and_a_small_case() -> None:
    assert set(OP_AXES) == set(OP_SHEET) == set(AXES)
    for op, scalars in OP_SCALARS.items():
        assert set(scalars) <= set(OP_SHEET[op].parameter_names)


@pytest.mark.parametrize("op", OP_SHEET)
def test_equal_cases_draw_equal_bytes_and_another_seed_other_ones(op: str) -> None:
    first, again, other = (
        _flat(build_inputs(small_case(op, seed=seed, family="base"))) for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("op", OP_SHEET)
def test_the_reference_takes_the_inputs_of_every_family(op: str, family: str) -> None:
    arguments = build_inputs(small_case(op, family=family))
    golden = TABLE.ops[op](*arguments.in_float64().positional(), numerics=GOLDEN)
    baseline = TABLE.ops[op](*arguments.cloned().positional(), numerics=FAST)
    for output in golden if isinstance(golden, tuple) else (golden,):
        assert not torch.isnan(output.to(torch.float64)).any()
    assert type(golden) is type(baseline)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
@pytest.mark.parametrize("op", OP_SHEET)
def test_a_layout_changes_no_value(op: str, layout: str) -> None:
    plain = _flat(build_inputs(small_case(op)))
    laid = _flat(build_inputs(small_case(op, layout=layout)))
    assert all(torch.equal(plain[name], laid[name]) for name in plain)


def test_layouts_are_what_they_say() -> None:
    inputs = {
        layout: build_inputs(small_case("rms_norm", layout=layout)).values["x"]
        for layout in LAYOUTS
    }
    assert inputs["contiguous"].is_contiguous()
    assert inputs["transposed"].stride() == (1, 5)
    assert inputs["strided"].stride() == (198, 2)
    assert inputs["offset"].storage_offset() == 3 * 101 + 3
    assert inputs["expanded"].stride() == (0, 1)
    assert torch.equal(inputs["expanded"][4], inputs["contiguous"][0])


def test_only_the_first_argument_is_expanded() -> None:
    values = build_inputs(small_case("hc_expand", layout="expanded")).values
    assert values["y"].stride(0) == 0
    assert values["streams"].stride(0) != 0


@pytest.mark.parametrize("op", ["linear_fp8", "linear_fp4_grouped", "engram_lookup"])
@pytest.mark.parametrize("family", ["base", "extremes", "zero_block"])
def test_quantised_weights_hold_no_nan_and_sensible_scales(op: str, family: str) -> None:
    arguments = build_inputs(small_case(op, family=family))
    (weight,) = (v for v in arguments.values.values() if isinstance(v, QuantisedWeight))
    if weight.layout != "fp4":
        assert int((weight.codes & 0x7F).max()) <= 0x7E
    assert 90 <= int(weight.scale.min()) <= int(weight.scale.max()) <= 140
    assert len(torch.unique(weight.scale)) > 2  # neighbours differ, or a wrong one would pass


@pytest.mark.parametrize(("fp8_max", "largest"), [(448, 0x7E), (240, 0x77)])
def test_given_codes_are_finite_on_the_grid_they_are_for(fp8_max: int, largest: int) -> None:
    case = small_case("dequantise_fp8", axes={"T": 64, "K": 512})
    codes = build_inputs(case, fp8_max=fp8_max).values["codes"]
    assert int((codes & 0x7F).max()) == largest


def test_zero_rows_masked_rows_and_zero_blocks_are_there() -> None:
    x = build_inputs(small_case("rms_norm", family="zero_rows")).values["x"]
    assert (x == 0).all(1).tolist() == [True, False, False, True, False]
    indices = build_inputs(small_case("sparse_attention", family="masked_rows")).values["indices"]
    assert (indices == -1).all(1).tolist() == [True, False, False, True, False]
    visible = build_inputs(small_case("topk_positions", family="masked_rows")).values
    assert visible["num_visible"][[0, 3]].tolist() == [0, 0]
    blocks = build_inputs(small_case("quantise_fp8", family="zero_block")).values["x"]
    assert (blocks.view(5, 3, 32) == 0).all(-1)[0].tolist() == [True, False, False]


def test_selected_rows_are_distinct_and_some_places_are_empty() -> None:
    indices = build_inputs(small_case("sparse_attention", seed=1)).values["indices"]
    assert (indices[0] >= 0).all()
    assert (indices == -1).any()
    for row in indices:
        chosen = row[row >= 0]
        assert len(torch.unique(chosen)) == len(chosen)


def test_ties_of_quantisers_are_midpoints_at_block_scale_one() -> None:
    x = build_inputs(small_case("quantise_fp4", family="ties")).values["x"].float()
    assert (x.view(5, 3, 32).abs().amax(-1) == 6).all()
    assert set(x.abs().unique().tolist()) <= {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0}


def test_group_sizes_cover_all_rows_and_leave_one_expert_idle() -> None:
    for seed in range(20):
        sizes = build_inputs(small_case("linear_fp4_grouped", seed=seed)).values["group_sizes"]
        assert int(sizes.sum()) == 7
        assert (sizes == 0).any()


def test_an_optional_tensor_is_left_out_when_its_scalar_says_so() -> None:
    case = small_case("swiglu", scalars={"route_weight": False})
    assert build_inputs(case).values["route_weight"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"T": 5}}, "axis 'd' is missing"),
        ({"axes": {"T": 5, "d": 8, "q": 1}}, "axis 'q' is not known"),
        ({"scalars": {"epsilon": 1}}, "scalar 'epsilon' is not known; did you mean eps"),
        ({"family": "exremes"}, "did you mean extremes"),
        ({"layout": "expandedd"}, "layout 'expandedd' is not known; did you mean expanded"),
    ],
)
def test_a_wrong_case_is_refused_with_what_is_known(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build_inputs(small_case("rms_norm", **changes))


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="K=40 must be a multiple of 32"):
        build_inputs(small_case("linear_fp8", axes={"T": 1, "N": 8, "K": 40}))


def test_a_case_of_no_rows_has_inputs_of_no_rows() -> None:
    for op, axes in AXES.items():
        arguments = build_inputs(small_case(op, axes={**axes, "T": 0}))
        first = next(iter(arguments.values.values()))
        if isinstance(first, torch.Tensor):
            assert first.shape[0] == 0, op


def test_float64_copies_hold_the_same_values() -> None:
    arguments = build_inputs(small_case("swiglu"))
    wide = arguments.in_float64()
    assert {t.dtype for _, t in wide.tensors()} == {torch.float64}
    assert all(
        torch.equal(narrow.double(), wide.values[name]) for name, narrow in arguments.tensors()
    )


def test_arguments_follow_the_sheet() -> None:
    arguments = build_inputs(small_case("rms_norm"))
    with pytest.raises(ValueError, match="takes"):
        dataclasses.replace(arguments, values={"weight": 1, "x": 2, "eps": 3})
