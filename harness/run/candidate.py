"""Running the op under test: what it returned, how it ended, and whether it filled its outputs."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from harness.core.errors import KernelError
from harness.core.numerics import Numerics
from harness.core.op_table import Op
from harness.core.status import OpStatus
from harness.run.clock import Clock
from harness.run.inputs import Arguments, Snapshot
from harness.run.verdict import as_outputs

__all__ = ["POISONS", "Attempt", "Candidate", "Poison", "bits_differ", "output_digest", "unwritten"]

Poison = Callable[[float], AbstractContextManager[object]]
POISONS = (float("nan"), 1e30)
_LONGEST_DETAIL = 20_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of the op.

    Attributes:
        outputs: what it returned; empty if it ended otherwise.
        failure: how it ended instead; None if it returned.
        modified: which input it changed, in words; empty if none.
    """

    outputs: tuple[object, ...] = ()
    failure: OpStatus | None = None
    message: str = ""
    detail: str = ""
    modified: str = ""
    elapsed_ms: float = 0.0
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An op with everything a run of it needs.

    Attributes:
        poison: `poison(value)` makes fresh output memory hold `value` inside the block; None
            where the backend offers nothing of the kind.
        counters: what the backend counted in the last run; None where it counts nothing.
    """

    op: Op
    numerics: Numerics
    clock: Clock
    poison: Poison | None = None
    counters: Callable[[], Mapping[str, float]] | None = None

    def attempt(self, arguments: Arguments, poison_value: float) -> Attempt:
        """Call the op on a copy of the arguments with poisoned output memory."""
        own = arguments.cloned()
        before = Snapshot.of(own)
        poisoned = self.poison(poison_value) if self.poison else nullcontext()
        start_ns = self.clock.monotonic_ns()
        try:
            with poisoned:
                outputs = as_outputs(self.op(*own.positional(), numerics=self.numerics))
        except KernelError as error:
            return _failed(OpStatus[error.status], error)
        except Exception as error:
            return _failed(OpStatus.RUN_ERROR, error)
        elapsed_ms = (self.clock.monotonic_ns() - start_ns) / 1e6
        return Attempt(
            # An output may be a view of an input: keep its value from what follows.
            tuple(o.clone() if isinstance(o, torch.Tensor) else o for o in outputs),
            modified=before.difference(own),
            elapsed_ms=elapsed_ms,
            counters=dict(self.counters()) if self.counters else {},
        )


def unwritten(first: Attempt, second: Attempt) -> str:
    """Where the output memory's poison shows through, in words; empty if nowhere.

    Args:
        first, second: runs on equal inputs whose output memory held POISONS[0] and [1].
    """
    for place, (a, b) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
            continue
        kept = torch.isnan(a) & (b == torch.tensor(POISONS[1], dtype=b.dtype))
        if bool(kept.any()):
            index = tuple(kept.nonzero()[0].tolist())
            return f"output {place}: {int(kept.sum())} elements keep their poison, first {index}"
    return ""


def bits_differ(first: Attempt, second: Attempt) -> str:
    """Which output differs between two runs on equal inputs, in words; empty if none."""
    if len(first.outputs) != len(second.outputs):
        return f"{len(first.outputs)} outputs, then {len(second.outputs)}"
    for place, (a, b) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {place} changes its shape or dtype"
        differs = (_rows_of_bytes(a) != _rows_of_bytes(b)).any(-1)
        if bool(differs.any()):
            flat = int(differs.to(torch.uint8).argmax())
            return f"output {place}: {int(differs.sum())} elements, first at flat index {flat}"
    return ""


def output_digest(outputs: tuple[object, ...]) -> str:
    """sha256 of dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for output in outputs:
        if isinstance(output, torch.Tensor):
            sha.update(f"{output.dtype}{tuple(output.shape)}".encode())
            sha.update(_rows_of_bytes(output).numpy().tobytes())
    return sha.hexdigest()


def _rows_of_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """[elements, bytes an element]."""
    flat = tensor.contiguous().reshape(-1, 1)
    return flat.view(torch.uint8)


def _failed(status: OpStatus, error: Exception) -> Attempt:
    detail = "".join(traceback.format_exception(error))
    first_line = str(error).strip().partition("\n")[0]
    message = (
        f"{type(error).__name__}: {first_line}" if status is OpStatus.RUN_ERROR else first_line
    )
    return Attempt(
        failure=status, message=message or type(error).__name__, detail=detail[-_LONGEST_DETAIL:]
    )
