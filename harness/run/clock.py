"""Time, injected, so that tests need not wait for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """What a procedure may ask about time."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of one monotonic clock; only differences mean anything."""

    def now(self) -> datetime:
        """Wall time, UTC."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's own clocks."""

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()

    def now(self) -> datetime:
        return datetime.now(UTC)


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to."""

    elapsed_ns: int = 0
    start: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def monotonic_ns(self) -> int:
        return self.elapsed_ns

    def now(self) -> datetime:
        return self.start + timedelta(microseconds=self.elapsed_ns // 1000)

    def advance_ms(self, milliseconds: float) -> None:
        """Let time pass."""
        self.elapsed_ns += round(milliseconds * 1_000_000)
