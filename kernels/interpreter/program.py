"""A launch, its programs, and what the instructions share while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.interpreter.accumulators import Accumulators
from kernels.interpreter.current import LOCAL
from kernels.interpreter.dtypes import DType
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import Lifetime, Storage
from kernels.interpreter.options import LaunchOptions
from kernels.interpreter.plan import Plan
from kernels.interpreter.races import SharedAccesses
from kernels.interpreter.strides import product
from kernels.interpreter.turns import Turns

__all__ = ["LAUNCH_LOCK", "Launch", "Program", "current_program"]

# Scratch arrays and clocks are shared: one launch at a time in a process. Reentrant because a
# program's own thread may launch again from host code.
LAUNCH_LOCK = threading.RLock()


@dataclass(slots=True)
class Launch:
    """One call of a kernel.

    Attributes:
        shared: shared_hbm allocations by order; the programs' n-th allocations are one storage.
    """

    kernel_name: str
    num_programs: int
    program_ndim: int
    options: LaunchOptions
    shared: list[tuple[tuple[int, ...], DType, Storage]] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    turns: Turns | None = None
    mailboxes: dict[Any, Any] = field(default_factory=dict)
    recorder: Any = None
    precise: bool = True

    def poisoned_bytes(self, shape: tuple[int, ...], kind: DType) -> Any:
        """Fresh HBM for the host to see."""
        array = np.empty(product(shape), kind.carrier)
        if kind.kind == "float":
            with np.errstate(all="ignore"):
                array.fill(np.float32(self.options.poison).astype(kind.carrier))
        elif kind.kind == "bool":
            array.fill(True)
        else:
            info = np.iinfo(kind.carrier)
            array.fill(min(max(self.options.integer_poison, info.min), info.max))
        return array.view(np.uint8)

    def watch_races(self, storage: Storage, kind: DType) -> None:
        """Let a storage that two programs share refuse conflicting accesses."""
        if self.num_programs > 1 and self.options.races and storage.nbytes:
            storage.races = SharedAccesses(storage.nbytes, kind.itemsize, self.num_programs)


class Program:
    """One physical core's run of the kernel."""

    __slots__ = (
        "barriers",
        "counts",
        "dma_rows",
        "index",
        "launch",
        "lifetimes",
        "next_shared",
        "recorder",
        "rng",
        "scalar_accumulators",
        "small_dma_rows",
        "tick",
        "trace",
        "turns",
        "vector_accumulators",
    )

    def __init__(self, launch: Launch, index: int) -> None:
        self.launch = launch
        self.index = index
        self.turns = launch.turns
        self.tick = 0
        self.counts: dict[Plan, int] = {}
        self.lifetimes: list[Lifetime] = []
        self.next_shared = 0
        self.barriers = 0
        self.dma_rows = 0
        self.small_dma_rows = 0
        self.recorder: Any = launch.recorder
        self.trace: list[Any] | None = [] if launch.options.trace else None
        self.scalar_accumulators = Accumulators()
        self.vector_accumulators = Accumulators()
        self.rng: Any = None

    def step(self) -> None:
        """One instruction begins: give the other program its turn."""
        if self.turns is not None and self.tick:
            self.turns.pass_on(self.index)
        self.tick += 1

    def forbid_replay(self) -> None:
        """What comes depends on run-time values or on the other core."""
        if self.recorder is not None:
            self.recorder.give_up()

    def count(self, plan: Plan) -> None:
        """`plan` was executed once."""
        counts = self.counts
        counts[plan] = counts.get(plan, 0) + 1
        if self.trace is not None:
            self.trace.append(plan)


def current_program(what: str) -> Program:
    """The running program.

    Raises:
        NkiValidationError: outside a kernel.
    """
    program = LOCAL.program
    if program is None:
        refuse(
            "",
            "called outside a kernel",
            "call it inside a function decorated with nki.jit",
            instruction=what,
        )
    return program
