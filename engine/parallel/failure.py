"""Which rank is to blame, and what the others were doing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.parallel.ring import first_difference, read_ring
from harness.core.errors import RankError

__all__ = ["Failure", "blame", "hung_rank", "is_stopped", "may_know_more", "ring_report"]

_SHOWN = 5
_STOPPED_STATES = ("T", "t")


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's end.

    Attributes:
        trace: its traceback; empty where it died without a word.
        when_ns: of its own report on the host's monotonic clock; 0 without one.
        is_collective: its exception came out of a collective, as a consequence of another's end.
    """

    rank: int
    reason: str
    trace: str
    when_ns: int
    is_collective: bool

    def as_error(self, report: str) -> RankError:
        """The error the user sees."""
        detail = "\n".join(part for part in (self.trace.rstrip(), report) if part)
        return RankError(self.rank, self.reason, detail)


def blame(failures: Sequence[Failure]) -> Failure:
    """The first cause: a silent death, else the earliest exception of a rank's own making."""
    return min(failures, key=lambda failure: (failure.is_collective, failure.when_ns))


def hung_rank(rings: Sequence[bytes], missing: Sequence[int], stopped: Collection[int] = ()) -> int:
    """A stopped rank, else that with the fewest collectives, else the first of `missing`.

    Ranks that wait inside a collective have entered it; the one they wait for has not, unless
    it was stopped after it entered.

    Args:
        missing: ranks to choose from, those whose answer is due first.
    """
    return min(missing, key=lambda rank: (rank not in stopped, read_ring(rings[rank])[0]))


def may_know_more(failures: Sequence[Failure], ring: bytes) -> bool:
    """Whether a rank without a failure of its own might report an earlier cause.

    A rank inside a collective can only tell of another's end, which is worth waiting for where
    nothing better is known.
    """
    entered, left, _ = read_ring(ring)
    return entered == left or all(failure.is_collective for failure in failures)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds a process; False where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The name in brackets may itself hold brackets and blanks.
    return stat.rpartition(")")[2].split()[0] in _STOPPED_STATES


def ring_report(rings: Sequence[bytes]) -> str:
    """The first entry in which ranks differ, and the last collectives of each."""
    states = [read_ring(ring) for ring in rings]
    if not any(entered for entered, _, _ in states):
        return ""
    lines = [first_difference([texts for _, _, texts in states])]
    for rank, (entered, left, texts) in enumerate(states):
        place = "inside the last one" if entered > left else "outside a collective"
        lines.append(f"rank {rank}: {entered} collectives entered, {place}")
        lines.extend(f"  {text}" for text in texts[-_SHOWN:])
    return "\n".join(line for line in lines if line)
