"""A table of its own name with the references' ops: a second backend that costs nothing."""

from __future__ import annotations

from references.op_table import TABLE

__all__ = ["TABLE"]
