"""A launch, its programs, and what the instructions share while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from kernels.interpreter.accumulators import Accumulators
from kernels.interpreter.current import LOCAL
from kernels.interpreter.dtypes import DType
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import Lifetime, Storage
from kernels.interpreter.options import LaunchOptions
from kernels.interpreter.plan import Plan
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
    barrier_epoch: int = 0


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
        "rng",
        "scalar_accumulators",
        "small_dma_rows",
        "tick",
        "trace",
        "turns",
        "uses_runtime_loops",
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
        self.trace: list[Any] | None = [] if launch.options.trace else None
        self.scalar_accumulators = Accumulators()
        self.vector_accumulators = Accumulators()
        self.rng: Any = None
        self.uses_runtime_loops = False

    def step(self) -> None:
        """One instruction begins: give the other program its turn."""
        if self.turns is not None and self.tick:
            self.turns.pass_on(self.index)
        self.tick += 1

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
