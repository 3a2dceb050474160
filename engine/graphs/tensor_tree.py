"""Nested arguments as one flat list of tensors, and back.

A region's graph takes tensors alone, so that layers of a kind can share it: weights, caches and
indices are all arguments. What is no tensor (widths, names, None) is part of the tree's form, and
calls of one form share a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

from harness.core.errors import UsageError
from harness.core.weights import QuantisedWeight

__all__ = ["Form", "flatten", "rebuild"]

_STATICS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of a tree, hashable.

    Attributes:
        kind: type of the node; None is a tensor.
        keys: names of its parts.
        parts: forms of its parts.
        static: value of a leaf that is no tensor.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    parts: tuple[Form, ...] = ()
    static: Any = None


_TENSOR = Form(None)


def flatten(tree: Any) -> tuple[list[torch.Tensor], Form]:
    """Tensors of a tree in a fixed order, and its form.

    A QuantisedWeight gives what ops have prepared of it beside its codes and scales.

    Raises:
        UsageError: something in the tree is neither a tensor nor a plain value.
    """
    tensors: list[torch.Tensor] = []
    return tensors, _flatten(tree, tensors)


def _flatten(tree: Any, tensors: list[torch.Tensor]) -> Form:
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        return _TENSOR
    if isinstance(tree, _STATICS):
        return Form(type(tree), static=tree)
    keys, parts = _parts(tree)
    return Form(type(tree), keys, tuple(_flatten(part, tensors) for part in parts))


def _parts(tree: Any) -> tuple[tuple[Any, ...], list[Any]]:
    if isinstance(tree, (tuple, list)):
        return tuple(range(len(tree))), list(tree)
    if isinstance(tree, dict):
        return tuple(tree), list(tree.values())
    if isinstance(tree, QuantisedWeight):
        return ("codes", "scale", "layout", "_prepared"), [
            tree.codes, tree.scale, tree.layout, tree._prepared,
        ]  # fmt: skip
    if is_dataclass(tree) and not isinstance(tree, type):
        keys = tuple(item.name for item in fields(tree))
        return keys, [getattr(tree, key) for key in keys]
    raise UsageError(
        f"a {type(tree).__name__} cannot be an argument of a compiled region: run it with "
        "--enforce-eager, or with ops that keep tensors alone"
    )


def rebuild(form: Form, tensors: Iterator[torch.Tensor]) -> Any:
    """The tree of a form, its tensors taken in order."""
    if form.kind is None:
        return next(tensors)
    if form.kind in _STATICS:
        return form.static
    parts = [rebuild(part, tensors) for part in form.parts]
    if form.kind in (tuple, list):
        return form.kind(parts)
    if form.kind is dict:
        return dict(zip(form.keys, parts, strict=True))
    return form.kind(**dict(zip(form.keys, parts, strict=True)))
