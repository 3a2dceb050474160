"""`build_inputs`: checks a case against the sheet and hands it to the op's builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from harness.core.case import Case
from harness.core.errors import UsageError
from harness.core.op_axes import FAMILIES, LAYOUTS, OP_AXES
from harness.core.ops import op_named
from harness.core.suggest import near_names
from harness.run.inputs import dense, selection, streams
from harness.run.inputs.arguments import Arguments
from harness.run.inputs.draw import Draw
from harness.run.inputs.layouts import laid_out

__all__ = ["OP_SCALARS", "build_inputs"]

_BUILDERS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    **dense.BUILDERS,
    **selection.BUILDERS,
    **streams.BUILDERS,
}

# Scalars a case may set, with the model's value where it does not. A bool under the name of a
# tensor says whether that optional tensor is given.
OP_SCALARS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "rms_norm": {"eps": 1e-20},
        "quantise_fp4": {"block": 32},
        "dequantise_fp4": {"block": 32},
        "linear_fp8": {"output": "activation"},
        "linear_bf16": {"output": "activation"},
        "swiglu": {"limit": 10.0, "route_weight": True},
        "router": {
            "top_k": lambda axes: min(6, axes["E"]),
            "route_scale": 1.5,
            "gate_temp": 1.0,
            "normalise": True,
        },
        "prefill_attention": {"scale": lambda axes: axes["D"] ** -0.5},
        "sparse_attention": {"scale": lambda axes: axes["D"] ** -0.5},
        "candidate_blocks": {
            "block_size": 8,
            "num_blocks": lambda axes: max(1, axes["n"] // 16),
        },
        "topk_positions": {"top_k": lambda axes: max(1, axes["n"] // 2), "candidates": True},
        "compress_pool": {"ratio": 2},
        "hc_mixes": {"norm_eps": 1e-20, "hc_eps": 1e-6, "iterations": 20},
        "engram_gate": {"eps": 1e-20},
        "output_projection": {"groups": lambda axes: axes["G"]},
        "vocab_topk": {"top_k": lambda axes: min(8, axes["V"])},
    }
)


def build_inputs(case: Case, *, fp8_max: int = 448) -> Arguments:
    """The case's arguments; equal cases give equal bytes.

    Args:
        case: axes by the sheet's letters, see harness.core.op_axes; scalars, see OP_SCALARS.
        fp8_max: the grid on which given fp8 codes must be finite, 448 or 240.

    Raises:
        UsageError: an axis or scalar is missing or unknown, a family or layout is not known, or
            lengths do not fit each other.
    """
    spec = op_named(case.op)
    scalars = _checked(case)
    draw = Draw.of(case, scalars, fp8_max)
    try:
        built = _BUILDERS[case.op](draw)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{case.case_id}: these lengths do not fit: {error}") from error
    values = {name: built.get(name, scalars.get(name)) for name in spec.parameter_names}
    kinds = {value.name: value.kind for value in spec.inputs}
    for index, (name, value) in enumerate(values.items()):
        values[name] = _placed(value, kinds[name], case.layout, is_first=index == 0)
    return Arguments(spec, values)


def _placed(value: Any, kind: str, layout: str, *, is_first: bool) -> Any:
    """In the case's layout. Parameters stay contiguous: they are laid out once, at load time.

    Only an op's first argument is expanded: with every input equal in every row, any wrong row
    order would pass.
    """
    if not isinstance(value, torch.Tensor) or kind == "weight":
        return value
    if layout == "expanded" and not is_first:
        return value
    return laid_out(value, layout)


def _checked(case: Case) -> dict[str, Any]:
    """Scalars with the defaults filled in."""
    _check_names(case, "family", [case.family], FAMILIES)
    _check_names(case, "layout", [case.layout], LAYOUTS)
    known_axes = tuple(axis.rstrip("?") for axis in OP_AXES[case.op])
    _check_names(case, "axis", case.axes, known_axes)
    missing = [axis for axis in OP_AXES[case.op] if axis[-1] != "?" and axis not in case.axes]
    if missing:
        raise UsageError(f"{case.case_id}: axis {missing[0]!r} is missing; give {known_axes}")
    defaults = OP_SCALARS.get(case.op, {})
    _check_names(case, "scalar", case.scalars, tuple(defaults))
    filled = {
        name: default(case.axes) if callable(default) else default
        for name, default in defaults.items()
    }
    return filled | dict(case.scalars)


def _check_names(case: Case, what: str, given: Any, known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(
                f"{case.case_id}: {what} {name!r} is not known{near_names(name, known)}"
            )
