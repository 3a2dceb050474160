"""The menu of ops an engine runs on: one callable for each row of the signature sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from harness.core.errors import UsageError
from harness.core.ops import OP_SHEET
from harness.core.registry import resolve_target
from harness.core.suggest import near_names

__all__ = ["OpTable", "resolve_op_table"]

Op = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OpTable:
    """Ops by name, immutable. `table.rms_norm(x, weight, eps, numerics=...)` calls the op.

    Attributes:
        ops: name -> callable with the sheet's positional parameters and `numerics` as keyword.
        fp8_max: the grid these ops need (240 for Trainium's), or None where any will do.
        source: where each op came from, name -> target text, kept in every record.
    """

    ops: Mapping[str, Op]
    fp8_max: int | None = None
    source: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.ops:
            if name not in OP_SHEET:
                raise UsageError(f"op table: {name!r} is not known{near_names(name, OP_SHEET)}")
        object.__setattr__(self, "ops", MappingProxyType(dict(self.ops)))
        object.__setattr__(self, "source", MappingProxyType(dict(self.source)))

    def __getattr__(self, name: str) -> Op:
        try:
            return self.ops[name]
        except KeyError:
            raise AttributeError(f"this op table has no op {name!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return (OpTable, (dict(self.ops), self.fp8_max, dict(self.source)))

    def overlaid(self, upper: OpTable) -> OpTable:
        """This table with the ops of `upper` in place of its own."""
        return OpTable(
            {**self.ops, **upper.ops},
            upper.fp8_max if upper.fp8_max is not None else self.fp8_max,
            {**self.source, **upper.source},
        )


def resolve_op_table(targets: Sequence[str]) -> OpTable:
    """Import tables by target text and lay them over one another, the last on top.

    Args:
        targets: e.g. ("references.op_table:TABLE", "kernels.op_table:TABLE").

    Raises:
        UsageError: a target cannot be imported, is no OpTable, or an op is missing in the end.
    """
    table = OpTable({})
    for target in targets:
        layer = resolve_target(target)
        if not isinstance(layer, OpTable):
            raise UsageError(f"target {target!r} is a {type(layer).__name__}, not an OpTable")
        table = table.overlaid(OpTable(layer.ops, layer.fp8_max, dict.fromkeys(layer.ops, target)))
    missing = sorted(set(OP_SHEET) - set(table.ops))
    if missing:
        raise UsageError(f"op table {'+'.join(targets) or '(empty)'} lacks: {', '.join(missing)}")
    return table
