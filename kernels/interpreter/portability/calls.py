"""Calls that trn2, the documents or a later NKI do not support."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernels.interpreter.portability.source import Function, KernelSource

__all__ = ["call_findings"]

Row = tuple[int, str, str]
_BANNED_OPERATIONS = {
    "divide": "multiply by nisa.reciprocal",
    "mod": "use masks and shifts on integers",
    "fmod": "use masks and shifts on integers",
    "abs_max": "take nl.abs first",
    "abs_min": "take nl.abs first",
}
_BANNED_INSTRUCTIONS = {
    "activate2": "use tensor_scalar and activation",
    "exponential": "use activation with nl.exp",
    "nc_matmul_mx": "decode to bfloat16 and use nc_matmul",
    "quantize_mx": "compute the scales with bit operations",
    "rand2": "use rng and tensor_scalar",
}
_BANNED_DTYPES = ("float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4")
_DEPRECATED = {
    "affine_range": "use range",
    "sequential_range": "use range",
    "static_range": "use range",
    "dynamic_range": "use nl.fori_loop",
}
_SLICING_METHODS = ("slice", "select")


def call_findings(source: KernelSource) -> Iterator[Row]:
    """Rows (line, code, message)."""
    for node in source.kernel_nodes():
        if isinstance(node, ast.Call):
            yield from _call(source, node)
        elif isinstance(node, ast.Attribute):
            yield from _name(source, node)
    for function in source.kernel_functions:
        yield from _sliced_ap(function)


def _call(source: KernelSource, node: ast.Call) -> Iterator[Row]:
    name = source.is_isa(node.func)
    if name and node.args:
        yield node.lineno, "positional", f"nisa.{name}: name every operand"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "indirect":
        yield node.lineno, "not-on-trn2", ".indirect: use .ap(vector_offset=…)"


def _name(source: KernelSource, node: ast.Attribute) -> Iterator[Row]:
    instruction, name = source.is_isa(node), source.is_language(node)
    if instruction in _BANNED_INSTRUCTIONS:
        remedy = _BANNED_INSTRUCTIONS[instruction]
        yield node.lineno, "not-on-trn2", f"nisa.{instruction}: {remedy}"
    if name in _BANNED_OPERATIONS:
        yield node.lineno, "not-on-trn2", f"nl.{name}: {_BANNED_OPERATIONS[name]}"
    if name in _BANNED_DTYPES:
        yield node.lineno, "not-on-trn2", f"nl.{name}: MX formats begin with NeuronCore-v4"
    if name in _DEPRECATED:
        yield node.lineno, "deprecated", f"nl.{name}: {_DEPRECATED[name]}"


def _sliced_ap(function: Function) -> Iterator[Row]:
    sliced: set[str] = set()
    nodes = sorted(
        (node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)),
        key=lambda node: (node.lineno, node.col_offset),
    )
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    (sliced.add if _is_slice(node.value) else sliced.discard)(target.id)
            continue
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "ap"):
            continue
        base = node.func.value
        if _is_slice(base) or (isinstance(base, ast.Name) and base.id in sliced):
            yield (
                node.lineno,
                "sliced-ap",
                ".ap on a sliced view: call it on the whole tensor and pass offset=",
            )


def _is_slice(node: ast.expr) -> bool:
    """Whether `node` is a subscript that slices a tensor, or .slice()/.select()."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        # A plain int index may as well pick a tensor from a tuple.
        return len(parts) > 1 or isinstance(parts[0], ast.Slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _SLICING_METHODS
    return False
