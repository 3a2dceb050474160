"""Target texts from which a worker builds its judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.op_table import OpTable
from harness.core.registry import resolve_target
from harness.run.judge import Judge, ToleranceTable

__all__ = ["ParityTargets", "table_at"]


@dataclass(frozen=True, slots=True)
class ParityTargets:
    """Where a worker finds what it judges with, as target texts ("package.module:object").

    Attributes:
        reference, kernels: OpTables; the kernels' may be partial.
        select_backend: called with the backend's name before anything runs; "" for none.
        poison, counters: see harness.run.candidate.Candidate; "" for none.
        cores: see harness.run.judge.Judge; "" for none.
    """

    reference: str
    kernels: str
    select_backend: str = ""
    poison: str = ""
    counters: str = ""
    cores: str = ""

    def judge(
        self,
        tolerances: ToleranceTable,
        *,
        backend: str,
        repeat: int = 1,
        bundle_root: Path | None = None,
    ) -> Judge:
        """Import everything and select the backend.

        Raises:
            UsageError: a target is wrong.
            MissingEvidenceError: the backend is not there (from `select_backend`).
        """
        if self.select_backend:
            resolve_target(self.select_backend)(backend)
        return Judge(
            reference=table_at(self.reference),
            kernels=table_at(self.kernels),
            tolerances=tolerances,
            backend=backend,
            poison=resolve_target(self.poison) if self.poison else None,
            counters=resolve_target(self.counters) if self.counters else None,
            repeat=repeat,
            bundle_root=bundle_root,
            cores=resolve_target(self.cores) if self.cores else None,
        )


def table_at(target: str) -> OpTable:
    """The table a target text names; it may be partial.

    Raises:
        UsageError: it cannot be imported or is no OpTable.
    """
    table = resolve_target(target)
    if not isinstance(table, OpTable):
        raise UsageError(f"target {target!r} is a {type(table).__name__}, not an OpTable")
    return table
