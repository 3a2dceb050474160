"""Mutants of NKI kernels on the bundled interpreter: its instructions are wrapped, not edited."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.run.mutation import Mutant

__all__ = ["HOOK", "TARGET", "InterpreterMutations"]

TARGET = f"{__name__}:HOOK"

_TENSORS = ("src", "data", "data1", "data2", "stationary", "moving", "dst")
_OPERATIONS = ("op", "op0", "op1", "reduce_op")
_CONSTANTS = ("operand0", "operand1", "value", "scale")
_OTHER_OPERATION = {
    "add": "subtract",
    "subtract": "add",
    "multiply": "add",
    "maximum": "minimum",
    "minimum": "maximum",
    "max": "min",
    "min": "max",
    "exp": "copy",
    "square": "abs",
    "rsqrt": "sqrt",
    "sigmoid": "relu",
    "relu": "copy",
    "greater_equal": "greater",
    "greater": "greater_equal",
    "less_equal": "less",
    "less": "less_equal",
    "equal": "not_equal",
    "not_equal": "equal",
    "bitwise_and": "bitwise_or",
    "bitwise_or": "bitwise_and",
    "left_shift": "right_shift",
    "right_shift": "left_shift",
}
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "equal")
_FIRST_ONLY = "first execution only"

Arguments = dict[str, Any]
Wrap = Callable[[str, str, Callable[..., Any], Arguments], Any]


class InterpreterMutations:
    """A MutationHook over `kernels.interpreter.isa`."""

    def recorded(self, op: str, run: Callable[[], None]) -> tuple[Mutant, ...]:
        """Every change of every instruction's place that `run` executes."""
        changes: dict[Mutant, None] = {}
        count = _ExecutionsInLaunch()

        def note(site: str, name: str, function: Callable[..., Any], bound: Arguments) -> Any:
            for change in _changes_of(bound):
                changes[Mutant(op, site, name, change)] = None
            if count.of(site, name) == 2:
                changes[Mutant(op, site, name, _FIRST_ONLY)] = None
            return function(**bound)

        with _wrapped(note):
            run()
        return tuple(changes)

    def places(self, run: Callable[[], None]) -> frozenset[str]:
        """Every place (file:line and instruction) that `run` executes."""
        found: set[str] = set()

        def note(site: str, name: str, function: Callable[..., Any], bound: Arguments) -> Any:
            found.add(f"{site} {name}")
            return function(**bound)

        with _wrapped(note):
            run()
        return frozenset(found)

    @contextmanager
    def applied(self, mutant: Mutant) -> Iterator[None]:
        """Launches inside the block run the mutant."""
        count = _ExecutionsInLaunch()

        def change(site: str, name: str, function: Callable[..., Any], bound: Arguments) -> Any:
            if (site, name) != (mutant.site, mutant.instruction):
                return function(**bound)
            if mutant.change == "drop":
                return None
            if mutant.change == _FIRST_ONLY:
                return function(**bound) if count.of(site, name) == 1 else None
            return function(**_changed(bound, mutant.change))

        with _wrapped(change):
            yield


class _ExecutionsInLaunch:
    """How often each place was executed by this program of this launch, this time included."""

    def __init__(self) -> None:
        self.program: object = None
        self.counts: Counter[tuple[str, str]] = Counter()

    def of(self, site: str, name: str) -> int:
        from kernels.interpreter.current import running_program

        program = running_program()
        if program is not self.program:
            self.program, self.counts = program, Counter()
        self.counts[site, name] += 1
        return self.counts[site, name]


HOOK = InterpreterMutations()


@contextmanager
def _wrapped(wrap: Wrap) -> Iterator[None]:
    """Every data instruction of `nisa` goes through `wrap` while the block runs."""
    from kernels.interpreter import isa
    from kernels.interpreter.options import launch_options

    originals = {
        name: function
        for name, function in vars(isa).items()
        if inspect.isfunction(function) and "dst" in inspect.signature(function).parameters
    }
    for name, function in originals.items():
        setattr(isa, name, _wrapper(name, function, wrap))
    try:
        # A traced launch executes the kernel; one that replays a recording would not pass here.
        with launch_options(trace=True):
            yield
    finally:
        for name, function in originals.items():
            setattr(isa, name, function)


def _wrapper(name: str, function: Callable[..., Any], wrap: Wrap) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        site = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        return wrap(site, name, function, dict(signature.bind(*arguments, **options).arguments))

    return call


def _changes_of(bound: Mapping[str, Any]) -> Iterator[str]:
    """The changes that make sense for an instruction with these arguments."""
    from kernels.interpreter.tensor import NkiTensor

    yield "drop"
    for operand in _TENSORS:
        value = bound.get(operand)
        if isinstance(value, NkiTensor) and _step_inside(value):
            yield f"offset {operand}"
    for operand in _OPERATIONS:
        name = getattr(bound.get(operand), "__name__", "")
        if name in _OTHER_OPERATION:
            yield f"{operand} {name} -> {_OTHER_OPERATION[name]}"
    for operand in _CONSTANTS:
        if isinstance(bound.get(operand), (int, float)):
            yield f"constant {operand}"
    operation = getattr(bound.get("op"), "__name__", "")
    if "data1" in bound and "data2" in bound and operation not in _COMMUTATIVE:
        yield "exchange data1 data2"
    if isinstance(bound.get("accumulate"), bool):
        yield "negate accumulate"


def _changed(bound: Mapping[str, Any], change: str) -> Arguments:
    """The arguments after a change of `_changes_of`."""
    changed = dict(bound)
    match change.split():
        case ["offset", operand]:
            changed[operand] = _moved_by_one(bound[operand])
        case ["constant", operand]:
            value = bound[operand]
            changed[operand] = value + 1 if isinstance(value, int) else value * 1.0625 + 2.0**-10
        case ["exchange", left, right]:
            changed[left], changed[right] = bound[right], bound[left]
        case ["negate", "accumulate"]:
            changed["accumulate"] = not bound["accumulate"]
        case [operand, _, "->", other]:
            changed[operand] = _operation(other)
    return changed


def _operation(name: str) -> Any:
    from kernels.interpreter import language

    return getattr(language, name)


def _step_inside(tensor: Any) -> int:
    """One element on, or one back, along the last axis: what stays inside the storage (on chip
    inside the partition); 0 where the view fills it."""
    step = int(tensor.strides[-1]) or 1
    free = slice(1, None) if tensor.on_chip else slice(None)
    row = tensor.free_elements
    start = tensor.offset % row
    pairs = zip(tensor.strides[free], tensor.shape[free], strict=True)
    end = start + sum(stride * (extent - 1) for stride, extent in pairs)
    if end + step < row:
        return step
    return -step if start >= step else 0


def _moved_by_one(tensor: Any) -> Any:
    """The same view one element further along its last axis, or one back; the view itself in a
    launch where it fills its storage."""
    from kernels.interpreter.tensor import NkiTensor

    return NkiTensor(
        tensor.storage,
        tensor.shape,
        tensor.strides,
        tensor.offset + _step_inside(tensor),
        tensor.dtype,
        tensor.name,
        tensor.runtime_offset,
    )
