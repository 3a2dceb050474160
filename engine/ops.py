"""An op table bound to one numerics mode, counting its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.core.errors import UsageError
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
        unheard: why an observer would not hear every call; "" where it does.
    """

    def __init__(self, table: OpTable, numerics: Numerics) -> None:
        self.table = table
        self.numerics = numerics
        self.num_launches = 0
        self.unheard = ""
        self._observer: OpObserver | None = None
        for name, op in table.ops.items():
            setattr(self, name, self._bound(name, op))

    @property
    def observer(self) -> OpObserver | None:
        """Who sees every call.

        Raises:
            UsageError: on setting one that would not hear every call.
        """
        return self._observer

    @observer.setter
    def observer(self, observer: OpObserver | None) -> None:
        if observer is not None and self.unheard:
            raise UsageError(self.unheard)
        self._observer = observer

    def _bound(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        numerics = self.numerics

        def call(*arguments: Any) -> Any:
            self.num_launches += 1
            result = op(*arguments, numerics=numerics)
            if self._observer is not None:
                self._observer(name, arguments, result)
            return result

        return call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"this op table has no op {name!r}")
