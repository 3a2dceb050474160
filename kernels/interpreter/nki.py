"""The module `nki`: jit and simulate.

A decorated kernel runs on the host's arrays: `kernel(args)` on one core (LNC1), `kernel[2](args)`
on two (LNC2). Called inside another kernel it runs inline.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.interpreter.arguments import Arguments
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.options import current_options, is_precise, platform_target
from kernels.interpreter.program import LAUNCH_LOCK, Launch, Program
from kernels.interpreter.recording import Recording
from kernels.interpreter.recordings import Recordings, Slot
from kernels.interpreter.single_thread import single_threaded_blas
from kernels.interpreter.summary import LaunchSummary, summarise, unwritten_outputs
from kernels.interpreter.turns import LaunchAborted, Turns

__all__ = ["Kernel", "jit", "last_launch", "simulate"]

_TARGETS = ("trn2", "gen3")


class _Last(threading.local):
    summary: LaunchSummary | None = None


_LAST = _Last()


def last_launch() -> LaunchSummary | None:
    """Summary of the last kernel that this thread ran to its end."""
    return _LAST.summary


class Kernel:
    """A function that `jit` decorated.

    Args:
        function: the kernel.
        grid: None for `kernel(args)`, else programs of `kernel[grid](args)`.
        recordings: shared by all grids of one kernel.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        grid: int | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        self.function = function
        self.grid = grid
        self.recordings = recordings or Recordings()
        functools.update_wrapper(self, function)

    def __getitem__(self, grid: Any) -> Kernel:
        if isinstance(grid, tuple) and len(grid) == 1:
            grid = grid[0]
        if not isinstance(grid, int) or grid not in (1, 2):
            refuse(
                "grid",
                repr(grid),
                "1 or 2 programs: a logical core of trn2 has 2 cores",
                instruction="launch",
            )
        return Kernel(self.function, grid, self.recordings)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if LOCAL.program is not None:
            return self.function(*arguments, **options)
        return _run(self, arguments, options)


def jit(fn: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Decorate a kernel, as `@nki.jit` or `@nki.jit(...)`."""
    if fn is None:
        return jit
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def simulate(kernel: Any) -> Kernel:
    """`simulate(kernel[lnc])(args)`: here every call is a simulation."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def _run(kernel: Kernel, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    _check_target()
    precise = is_precise(current_options())
    host = Arguments(precise)
    args = tuple([host.wrap(value, f"argument {i}") for i, value in enumerate(arguments)])
    named = {name: host.wrap(value, name) for name, value in options.items()}
    count = kernel.grid or 1
    name = getattr(kernel.function, "__name__", "kernel")
    launch = Launch(name, count, 1 if count > 1 else 0, current_options(), precise=precise)
    host.watch_races(launch)
    with LAUNCH_LOCK, single_threaded_blas():
        slot = kernel.recordings.slot(kernel.function, launch, host, tuple(options))
        if slot is not None and slot.recording is not None:
            result, summary = _replay(slot.recording, launch, host)
        else:
            result, summary = _execute(kernel.function, launch, host, args, named, slot)
        returned = host.unwrap(result)
        if slot is not None and slot.recording is not None:
            slot.recording.release()
    _LAST.summary = summary
    host.finish()
    if launch.options.on_launch is not None:
        launch.options.on_launch(summary)
    return returned


def _check_target() -> None:
    target = platform_target()
    if target not in _TARGETS:
        refuse(
            "NEURON_PLATFORM_TARGET_OVERRIDE",
            target,
            f"one of {', '.join(_TARGETS)}",
            instruction="launch",
        )


def _execute(
    function: Callable[..., Any],
    launch: Launch,
    host: Arguments,
    args: tuple[Any, ...],
    named: dict[str, Any],
    slot: Slot | None,
) -> tuple[Any, LaunchSummary]:
    """Run the kernel itself; the second run of a kind is recorded."""
    recorder = launch.recorder = slot.recorder() if slot is not None else None
    if launch.num_programs == 1:
        result = _run_program(launch, 0, function, args, named)
    else:
        result = _run_in_turns(launch, function, args, named)[0]
    summary = summarise(launch, unwritten_outputs(result))
    if slot is not None and recorder is not None:
        slot.keep(recorder, launch, host.tensors, result, summary)
    return result, summary


def _replay(recording: Recording, launch: Launch, host: Arguments) -> tuple[Any, LaunchSummary]:
    host.adopt(recording.inputs)
    recording.replay(launch, host.tensors)
    unwritten = tuple(unwritten_outputs(recording.result))
    summary = recording.summary
    if unwritten != summary.unwritten:
        summary = replace(summary, unwritten=unwritten)
    return recording.result, summary


def _run_program(
    launch: Launch,
    index: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    program = Program(launch, index)
    launch.programs.append(program)
    LOCAL.program = program
    LOCAL.instruction = "kernel"
    try:
        with np.errstate(all="ignore"):
            return function(*arguments, **options)
    finally:
        LOCAL.program = None


def _run_in_turns(
    launch: Launch,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> list[Any]:
    """Every program in a thread of its own, one at a time by `Turns`."""
    turns = launch.turns = Turns(launch.num_programs)
    results: list[Any] = [None] * launch.num_programs
    failures: list[BaseException] = []

    def body(index: int) -> None:
        failed = True
        try:
            turns.start(index)
            results[index] = _run_program(launch, index, function, arguments, options)
            failed = False
        except LaunchAborted:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            turns.finish(index, failed)

    threads = [
        threading.Thread(target=body, args=(i,), name=f"nki program {i}", daemon=True)
        for i in range(launch.num_programs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
