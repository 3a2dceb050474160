"""Tokens of logits that are no numbers mean nothing: commands that print them refuse."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import UsageError

__all__ = ["require_finite"]


def require_finite(position: float | None, checkpoint: Path) -> None:
    """End the command where logits were NaN or infinite.

    Args:
        position: the first such position, from 0; None where all logits are finite.

    Raises:
        UsageError: names the position and what finds a damaged weight.
    """
    if position is not None:
        raise UsageError(
            f"logits not finite at position {position:.0f}; run "
            f"`neuron-harness checkpoint verify {checkpoint}`"
        )
