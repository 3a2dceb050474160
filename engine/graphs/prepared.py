"""What ops prepare of weights, made before a region is captured.

Ops keep derived forms on their weights (a dequantised copy, say). One eager run of a region tells
which; every layer of the kind then makes the same forms, so that they are arguments of the graph
and not computed in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from harness.core.weights import QuantisedWeight

__all__ = ["PreparedForms", "prepared", "recording"]

T = TypeVar("T")
Build = Callable[[QuantisedWeight], Any]
PreparedForms = list[dict[str, Build]]
"""Of each quantised weight of a tree, in order: key -> how the form is built."""


@dataclass(eq=False, slots=True)
class _Recorder(QuantisedWeight):
    """A weight that notes which forms it was asked for."""

    asked: dict[str, Build] = field(default_factory=dict)

    def prepared(self, key: str, build: Callable[[QuantisedWeight], T]) -> T:
        """See QuantisedWeight."""
        self.asked[key] = build
        return QuantisedWeight.prepared(self, key, build)


def recording(weights: T) -> tuple[T, PreparedForms]:
    """The same weights, which note their forms in the list."""
    forms: PreparedForms = []

    def recorder(weight: QuantisedWeight) -> QuantisedWeight:
        asked: dict[str, Build] = {}
        forms.append(asked)
        return _Recorder(weight.codes, weight.scale, weight.layout, weight._prepared, asked)

    return _mapped(weights, recorder), forms


def prepared(weights: T, forms: PreparedForms) -> T:
    """The weights with exactly these forms, made where they are not there yet."""
    waiting = iter(forms)

    def with_forms(weight: QuantisedWeight) -> QuantisedWeight:
        asked = next(waiting)
        known = {key: weight.prepared(key, build) for key, build in asked.items()}
        return QuantisedWeight(weight.codes, weight.scale, weight.layout, known)

    made: T = _mapped(weights, with_forms)
    return made


def _mapped(tree: Any, change: Callable[[QuantisedWeight], QuantisedWeight]) -> Any:
    if isinstance(tree, QuantisedWeight):
        return change(tree)
    if isinstance(tree, tuple):
        return tuple(_mapped(part, change) for part in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        changes = {item.name: _mapped(getattr(tree, item.name), change) for item in fields(tree)}
        return replace(tree, **changes)
    return tree
