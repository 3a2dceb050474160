"""Record a kernel's instructions once, replay them for later calls of the same shapes.

A kernel's instructions depend on shapes and constants only, so the third call of a kind need not
run the kernel's Python again: no allocations, no views, no checks of shapes. What depends on
values stays: unwritten memory, indices, races, accumulation. The bits are the same.

Not recorded: kernels with run-time loops, registers, barriers or exchanges, kernels that are
closures, and kernels that read module-level lists, dicts or sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import NkiValidationError, kernel_location
from kernels.interpreter.memory import Storage
from kernels.interpreter.program import Launch, Program
from kernels.interpreter.registers import ScalarOffset, VectorOffset
from kernels.interpreter.summary import LaunchSummary
from kernels.interpreter.tensor import NkiTensor

__all__ = ["Recorder", "Recording"]

_MAX_STEPS = 20_000
_MAX_BYTES = 64 << 20
Step = tuple[int, Callable[..., Any], tuple[Any, ...], dict[str, Any], str]


class Recorder:
    """Collects the steps of a launch in the order in which they ran."""

    __slots__ = ("_held_bytes", "steps", "usable")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.usable = True
        self._held_bytes = 0

    def add(
        self,
        program: Program,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """One instruction was executed."""
        if not self.usable:
            return
        self.steps.append((program.index, function, arguments, options, kernel_location()))
        dst = options.get("dst")
        if isinstance(dst, NkiTensor):
            self._held_bytes += dst.size * dst.itemsize
        if len(self.steps) > _MAX_STEPS or self._held_bytes > _MAX_BYTES:
            self.give_up()

    def give_up(self) -> None:
        """This launch cannot be replayed."""
        self.usable = False
        self.steps = []


class Recording:
    """The steps of one kernel for one kind of arguments.

    Args:
        launch: the recorded launch, finished.
        steps: of its recorder.
        inputs: the tensors of the host's arrays, in order of argument.
        result: what the kernel returned, on tensors.
        summary: of the recorded launch.

    Attributes:
        nbytes: of the on-chip tiles it keeps.
    """

    def __init__(
        self,
        launch: Launch,
        steps: list[Step],
        inputs: list[NkiTensor],
        result: Any,
        summary: LaunchSummary,
    ) -> None:
        self.inputs = inputs
        self.result = result
        self.summary = summary
        self._steps = steps
        self._num_programs = launch.num_programs
        self._shared = list(launch.shared)
        tensors = list(_tensors_of([step[2:4] for step in steps])) + list(_tensors_of(result))
        self._hbm_views = [t for t in {id(t): t for t in tensors}.values() if not t.on_chip]
        storages = {id(t.storage): t.storage for t in tensors}
        given = {id(t.storage) for t in inputs}
        # Constants (neither given nor allocated) keep their contents.
        self._fresh = [s for key, s in storages.items() if key not in given and not s.is_input]
        buffers = _share_buffers(launch, self._fresh, tensors)
        self.nbytes = sum({id(b): b.size for b in buffers}.values())
        self.release()

    def replay(self, launch: Launch, inputs: list[NkiTensor]) -> None:
        """Execute the steps on the arrays of `inputs`; results are in `self.result`."""
        self._bind(launch, inputs)
        launch.programs = [Program(launch, i) for i in range(self._num_programs)]
        with np.errstate(all="ignore"):
            self._run_steps(launch)
        for recorded, given in zip(self.inputs, inputs, strict=True):
            given.storage.version = recorded.storage.version

    def _run_steps(self, launch: Launch) -> None:
        program = None
        local = LOCAL
        step = self._steps[0]
        try:
            for step in self._steps:
                index, function, arguments, options, _ = step
                if program is None or program.index != index:
                    program = local.program = launch.programs[index]
                program.tick += 1
                function(*arguments, **options)
        except NkiValidationError as error:
            # The kernel's own frames are not on the stack: its line was noted when recording.
            name, line = f"nisa.{step[1].__name__}", step[4]
            raise NkiValidationError(
                name, error.operand, error.value, error.limit, error.remedy, line
            ) from None
        finally:
            local.program = None

    def release(self) -> None:
        """Let go of the host's arrays."""
        for tensor in self.inputs:
            tensor.storage.buffer = np.empty(0, np.uint8)
        for view in self._hbm_views:
            view.forget_address()

    def _bind(self, launch: Launch, inputs: list[NkiTensor]) -> None:
        for storage in self._fresh:
            storage.forget_all()
            storage.float_tiles = None
        for recorded, given in zip(self.inputs, inputs, strict=True):
            storage = recorded.storage
            storage.buffer = given.storage.buffer
            storage.version = 0
            storage.float_tiles = None
            storage.races = given.storage.races
        for shape, kind, storage in self._shared:
            storage.buffer = launch.poisoned_bytes(shape, kind)
            launch.watch_races(storage, kind)
        for view in self._hbm_views:
            view.forget_address()


def _tensors_of(value: Any) -> Iterator[NkiTensor]:
    """Every tensor in nested arguments, and those that give run-time offsets."""
    if isinstance(value, NkiTensor):
        yield value
        offset = value.runtime_offset
        if isinstance(offset, VectorOffset):
            yield from _tensors_of(offset.indices)
        elif isinstance(offset, ScalarOffset):
            yield from _tensors_of(offset.source)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_of(item)
    elif isinstance(value, dict):
        yield from _tensors_of(list(value.values()))


def _share_buffers(launch: Launch, storages: list[Storage], tensors: list[NkiTensor]) -> list[Any]:
    """Give tiles whose lifetimes do not meet the same bytes, as a memory allocator would."""
    tiles = [s for s in storages if s.lifetime is not None]
    free: dict[tuple[int, int], list[tuple[int, Any]]] = {}
    buffers = []
    for storage in sorted(tiles, key=lambda s: s.lifetime.first_use if s.lifetime else 0):
        life = storage.lifetime
        assert life is not None
        key = (id(life.clock), storage.nbytes)
        waiting = free.setdefault(key, [])
        ready = [item for item in waiting if item[0] < life.first_use]
        if ready:
            waiting.remove(ready[0])
            buffer = ready[0][1]
        else:
            buffer = storage.buffer
        buffers.append(buffer)
        storage.buffer = buffer
        storage.pooled = False
        waiting.append((life.last_use, buffer))
    for tensor in tensors:
        tensor.forget_address()
    return buffers
