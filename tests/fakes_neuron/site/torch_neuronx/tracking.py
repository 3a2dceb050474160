"""Which ops ran "on the device", and which fell back to the CPU.

FAKE_NEURON_FALLBACKS names ops (comma-separated, e.g. aten::sort) that this device lacks.
"""

import os

__all__ = ["clear_op_tracking", "get_executed_ops", "get_fallback_ops", "note"]

_executed: list[str] = []
_fallbacks: list[str] = []


def clear_op_tracking() -> None:
    """Forget both lists."""
    _executed.clear()
    _fallbacks.clear()


def get_executed_ops() -> list[str]:
    """Names, one per call."""
    return list(_executed)


def get_fallback_ops() -> list[str]:
    """Names, one per call."""
    return list(_fallbacks)


def note(name: str) -> None:
    """Count one call of an op."""
    lacking = os.environ.get("FAKE_NEURON_FALLBACKS", "").split(",")
    (_fallbacks if name in lacking else _executed).append(name)
