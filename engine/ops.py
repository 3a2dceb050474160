"""An op table bound to one numerics mode, counting its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.core.numerics import Numerics
from harness.core.op_table import OpTable

__all__ = ["BoundOps", "OpObserver"]

OpObserver = Callable[[str, tuple[Any, ...], Any], None]
"""Called after each op with its name, arguments and result."""


class BoundOps:
    """`ops.rms_norm(x, weight, eps)` calls the table's op with the numerics filled in.

    Attributes:
        num_launches: ops called so far.
        observer: sees every call, e.g. to capture an op's inputs; None costs nothing.
    """

    def __init__(self, table: OpTable, numerics: Numerics) -> None:
        self.table = table
        self.numerics = numerics
        self.num_launches = 0
        self.observer: OpObserver | None = None
        for name, op in table.ops.items():
            setattr(self, name, self._bound(name, op))

    def _bound(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        numerics = self.numerics

        def call(*arguments: Any) -> Any:
            self.num_launches += 1
            result = op(*arguments, numerics=numerics)
            if self.observer is not None:
                self.observer(name, arguments, result)
            return result

        return call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"this op table has no op {name!r}")
