"""The module `nki`: jit and simulate.

A decorated kernel runs on the host's arrays: `kernel(args)` on one core (LNC1), `kernel[2](args)`
on two (LNC2). Called inside another kernel it runs inline.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.interpreter.arguments import Arguments
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.options import current_options, platform_target
from kernels.interpreter.program import LAUNCH_LOCK, Launch, Program
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
    """

    def __init__(self, function: Callable[..., Any], grid: int | None = None) -> None:
        self.function = function
        self.grid = grid
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
        return Kernel(self.function, grid)

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
    target = platform_target()
    if target not in _TARGETS:
        refuse(
            "NEURON_PLATFORM_TARGET_OVERRIDE",
            target,
            f"one of {', '.join(_TARGETS)}",
            instruction="launch",
        )
    host = Arguments()
    args = tuple(host.wrap(value, f"argument {i}") for i, value in enumerate(arguments))
    named = {name: host.wrap(value, name) for name, value in options.items()}
    count = kernel.grid or 1
    launch = Launch(
        getattr(kernel.function, "__name__", "kernel"),
        count,
        1 if count > 1 else 0,
        current_options(),
    )
    host.watch_races(launch)
    with LAUNCH_LOCK, single_threaded_blas():
        if count == 1:
            results = [_run_program(launch, 0, kernel.function, args, named)]
        else:
            results = _run_in_turns(launch, kernel.function, args, named)
    summary = _LAST.summary = summarise(launch, unwritten_outputs(results[0]))
    returned = host.unwrap(results[0])
    host.finish()
    if launch.options.on_launch is not None:
        launch.options.on_launch(summary)
    return returned


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
