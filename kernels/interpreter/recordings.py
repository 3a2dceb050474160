"""The recordings of one kernel, by kind of arguments; a bounded number is kept."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from kernels.interpreter.arguments import Arguments
from kernels.interpreter.program import Launch
from kernels.interpreter.purity import Dependencies
from kernels.interpreter.recording import Recorder, Recording
from kernels.interpreter.summary import LaunchSummary
from kernels.interpreter.tensor import NkiTensor

__all__ = ["Recordings", "Slot"]

_MAX_KINDS = 64
_MAX_KEPT_BYTES = 256 << 20

_KEPT: weakref.WeakSet[Recording] = weakref.WeakSet()


class Slot:
    """One kind of arguments: how often it was seen, and its recording once there is one."""

    __slots__ = ("_num_runs", "recording")

    def __init__(self) -> None:
        self._num_runs = 0
        self.recording: Recording | None = None

    def recorder(self) -> Recorder | None:
        """A recorder for the second run: one-off shapes are not worth keeping tiles for."""
        self._num_runs += 1
        return Recorder() if self._num_runs == 2 else None

    def keep(
        self,
        recorder: Recorder,
        launch: Launch,
        inputs: list[NkiTensor],
        result: Any,
        summary: LaunchSummary,
    ) -> None:
        """Make the recording, if the kernel could be recorded."""
        if not (recorder.usable and recorder.steps):
            return
        recording = Recording(launch, recorder.steps, inputs, result, summary)
        # All kernels of the process share one budget of kept tiles.
        if sum(kept.nbytes for kept in _KEPT) + recording.nbytes <= _MAX_KEPT_BYTES:
            _KEPT.add(recording)
            self.recording = recording


class Recordings:
    """Slots of one kernel; the least recently used are dropped."""

    def __init__(self) -> None:
        self._slots: OrderedDict[Any, Slot] = OrderedDict()
        self._dependencies: Dependencies | None = None

    def slot(
        self,
        function: Callable[..., Any],
        launch: Launch,
        host: Arguments,
        names: tuple[str, ...],
    ) -> Slot | None:
        """The slot of this launch; None where it may not be replayed."""
        options = launch.options
        if not options.replay or options.trace:
            return None
        dependencies = self._dependencies
        if dependencies is None or not dependencies.unchanged():
            self._slots.clear()
            dependencies = self._dependencies = Dependencies(function)
        if not dependencies.pure:
            return None
        key = (launch.num_programs, options.races, launch.precise, names, *host.signature)
        try:
            slot = self._slots.get(key)
        except TypeError:  # an argument that cannot be hashed
            return None
        if slot is None:
            slot = self._slots[key] = Slot()
            if len(self._slots) > _MAX_KINDS:
                self._slots.popitem(last=False)
        else:
            self._slots.move_to_end(key)
        return slot
