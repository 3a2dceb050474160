"""The only adapter to an NKI runtime: which one serves, how a kernel is called, what it costs.

Kernels write `from kernels.launch import nki, nl, nisa`. The modules are chosen once a process, on
first import: AWS's `nki` where it is truly installed, else the bundled interpreter. With the real
modules a launch runs on a device if there is one, else on the official simulator.

    backend     modules        runs on
    interpret   bundled        this CPU, instruction by instruction
    simulate    AWS's nki      this CPU, `nki.simulate`
    device      AWS's nki      a NeuronCore, through torch-neuronx

NEURON_HARNESS_BACKEND names one; `backend_selected` does so for a block. The LNC degree comes from
NEURON_LOGICAL_NC_CONFIG or `lnc_selected`; unset, it is 2 on a device and 1 on a CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import torch

from harness.core.errors import KernelError, MissingEvidenceError, UsageError
from kernels.device import call_on_device, require_runtime_lnc
from kernels.sdk import find_nki

__all__ = [
    "BACKENDS",
    "BACKEND_VARIABLE",
    "LNC_VARIABLE",
    "LaunchCounters",
    "active_backend",
    "active_lnc",
    "backend_selected",
    "counters",
    "launch",
    "launch_many",
    "lnc_selected",
    "missing_backends",
    "nisa",
    "nki",
    "nl",
    "poisoned",
    "reset_counters",
]

BACKENDS = ("interpret", "simulate", "device")
BACKEND_VARIABLE = "NEURON_HARNESS_BACKEND"
LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# An integer output that keeps this was never written; no id, code or count has this value.
_INTEGER_POISON = -(2**31) + 4242


def _backend_from_environment() -> str:
    name = os.environ.get(BACKEND_VARIABLE, "auto").strip() or "auto"
    if name not in (*BACKENDS, "auto"):
        raise UsageError(
            f"{BACKEND_VARIABLE} is {name!r}: choose one of auto, {', '.join(BACKENDS)}"
        )
    return name


def _modules() -> tuple[str, Any, Any, Any]:
    """("bundled" or "sdk", nki, nki.language, nki.isa)."""
    wanted = _backend_from_environment()
    state = find_nki()
    if wanted in ("simulate", "device") and state.kind != "real":
        raise MissingEvidenceError(f"backend {wanted!r} cannot run: {state.reason}")
    if state.kind == "real" and wanted != "interpret":
        names = ("nki", "nki.language", "nki.isa")
    else:
        names = (
            "kernels.interpreter.nki",
            "kernels.interpreter.language",
            "kernels.interpreter.isa",
        )
    face, language, isa = (importlib.import_module(name) for name in names)
    return ("sdk" if names[0] == "nki" else "bundled"), face, language, isa


class NkiFace(Protocol):
    """What kernels and this module use of `nki`."""

    def jit(self, fn: Kernel) -> Kernel:
        """Make a function a kernel."""

    def simulate(self, kernel: Any) -> Callable[..., Any]:
        """Run a kernel on the CPU."""


_family: str
nki: NkiFace
nl: Any
nisa: Any
_family, nki, nl, nisa = _modules()
_selected_backend: ContextVar[str] = ContextVar("kernel_backend", default="auto")
_selected_lnc: ContextVar[int] = ContextVar("kernel_lnc", default=0)


@dataclass(slots=True)
class LaunchCounters:
    """What launches of this process did since `reset_counters`.

    Attributes:
        launches: kernels run, by kernel name.
        instructions: executed by the interpreter; other runtimes do not tell.
        dma_bytes: moved by DMA, the same.
        sbuf_peak_bytes, psum_peak_bytes: high-water of live bytes in a partition of any launch.
        estimated_ns: sum of the interpreter's roofline estimates, never device time.
        backends: launches by the backend that ran them.
    """

    launches: dict[str, int] = field(default_factory=dict)
    instructions: int = 0
    dma_bytes: int = 0
    sbuf_peak_bytes: int = 0
    psum_peak_bytes: int = 0
    estimated_ns: float = 0.0
    backends: dict[str, int] = field(default_factory=dict)

    @property
    def num_launches(self) -> int:
        """All kernels run."""
        return sum(self.launches.values())

    def as_mapping(self) -> dict[str, float]:
        """Plain numbers, for records."""
        return {
            "launches": self.num_launches,
            "instructions": self.instructions,
            "dma_bytes": self.dma_bytes,
            "sbuf_peak_bytes": self.sbuf_peak_bytes,
            "psum_peak_bytes": self.psum_peak_bytes,
            "estimated_ns": self.estimated_ns,
        }


_counters = LaunchCounters()


def counters() -> LaunchCounters:
    """The counters since the last reset."""
    return _counters


def reset_counters() -> None:
    """Start counting afresh; a `LaunchCounters` taken before keeps its figures."""
    global _counters
    _counters = LaunchCounters()


@cache
def missing_backends() -> Mapping[str, str]:
    """Backend -> why it cannot run in this process; only those that cannot."""
    if _family == "bundled":
        reason = find_nki().reason or f"{BACKEND_VARIABLE}=interpret was set at start-up"
        return MappingProxyType({"simulate": reason, "device": reason})
    missing = {
        "interpret": f"AWS's nki is loaded: set {BACKEND_VARIABLE}=interpret before starting Python"
    }
    if not _has_device():
        missing["device"] = "there is no torch device named neuron (torch-neuronx and a NeuronCore)"
    return MappingProxyType(missing)


def _has_device() -> bool:
    if torch._C._get_privateuse1_backend_name() == "neuron":
        return torch.accelerator.is_available()
    return False


def active_backend() -> str:
    """What a launch would run on now.

    Raises:
        MissingEvidenceError: the chosen backend is not there; the message says what is missing.
    """
    name = _selected_backend.get()
    if name == "auto":
        name = _backend_from_environment()
    missing = missing_backends()
    if name == "auto":
        return next(backend for backend in reversed(BACKENDS) if backend not in missing)
    if name in missing:
        raise MissingEvidenceError(f"backend {name!r} cannot run: {missing[name]}")
    return name


@contextmanager
def backend_selected(name: str) -> Iterator[str]:
    """Launches inside the block run on `name` ("auto" for the best there is).

    Raises:
        UsageError: no backend of that name.
        MissingEvidenceError: it cannot run here.
    """
    if name not in (*BACKENDS, "auto"):
        raise UsageError(f"backend {name!r} is not known: choose auto, {', '.join(BACKENDS)}")
    token = _selected_backend.set(name)
    try:
        yield active_backend()
    finally:
        _selected_backend.reset(token)


def active_lnc() -> int:
    """Physical cores of a launch: 1 or 2.

    Raises:
        UsageError: NEURON_LOGICAL_NC_CONFIG is neither.
    """
    selected = _selected_lnc.get()
    if selected:
        return selected
    text = os.environ.get(LNC_VARIABLE, "").strip()
    if not text:
        return 2 if active_backend() == "device" else 1
    if text not in ("1", "2"):
        raise UsageError(f"{LNC_VARIABLE} is {text!r}: a logical core of trn2 has 1 or 2 cores")
    return int(text)


@contextmanager
def lnc_selected(degree: int) -> Iterator[None]:
    """Launches inside the block run on this many physical cores.

    Raises:
        UsageError: not 1 or 2.
    """
    if degree not in (1, 2):
        raise UsageError(f"LNC degree is {degree}: a logical core of trn2 has 1 or 2 cores")
    token = _selected_lnc.set(degree)
    try:
        yield
    finally:
        _selected_lnc.reset(token)


@contextmanager
def poisoned(value: float) -> Iterator[bool]:
    """Fresh HBM of launches inside the block holds `value` (integers: a sentinel).

    Yields whether it does: only the bundled interpreter lets the host choose.
    """
    if _family == "bundled":
        from kernels.interpreter.options import launch_options

        sentinel = 4 if math.isnan(value) else _INTEGER_POISON
        with launch_options(poison=value, integer_poison=sentinel):
            yield True
    else:
        yield False


def launch(kernel: Callable[..., Any], *arguments: Any) -> torch.Tensor:
    """`launch_many` for a kernel with one output."""
    output: torch.Tensor = _launch(kernel, arguments)
    return output


def launch_many(kernel: Callable[..., Any], *arguments: Any) -> tuple[torch.Tensor, ...]:
    """Run a kernel on host values: CPU tensors in, CPU tensors out; inputs stay as they are.

    With a tensor of the device among them outputs stay there (kernels.device).

    Args:
        kernel: what `nki.jit` made.
        arguments: torch tensors (any layout) and compile-time constants.

    Raises:
        KernelError: COMPILE_ERROR, RUN_ERROR or UNWRITTEN, naming the kernel.
        MissingEvidenceError: the chosen backend is not there.
    """
    outputs: tuple[torch.Tensor, ...] = _launch(kernel, arguments)
    return outputs


def _launch(kernel: Any, arguments: tuple[Any, ...]) -> Any:
    backend = active_backend()
    name = getattr(kernel, "__name__", repr(kernel))
    dense = [a.detach().contiguous() if isinstance(a, torch.Tensor) else a for a in arguments]
    lnc = active_lnc()
    specialised = kernel[lnc] if lnc > 1 else kernel
    if backend == "device":
        require_runtime_lnc(lnc)
    with _failures_as_status(name, backend):
        if backend == "interpret":
            result = specialised(*dense)
        elif backend == "simulate":
            result = _as_tensors(nki.simulate(specialised)(*dense))
        else:
            result = call_on_device(kernel, lnc, dense)
    _counters.launches[name] = _counters.launches.get(name, 0) + 1
    _counters.backends[backend] = _counters.backends.get(backend, 0) + 1
    if backend == "interpret":
        _account(name)
    return result


def _account(name: str) -> None:
    """Add the interpreter's summary of the last launch to the counters.

    Raises:
        KernelError: UNWRITTEN, an output has elements that no instruction wrote.
    """
    from kernels.interpreter.nki import last_launch

    summary = last_launch()
    assert summary is not None
    _counters.instructions += summary.num_instructions
    _counters.dma_bytes += summary.total_bytes
    _counters.sbuf_peak_bytes = max(_counters.sbuf_peak_bytes, summary.sbuf_peak_bytes)
    _counters.psum_peak_bytes = max(_counters.psum_peak_bytes, summary.psum_peak_bytes)
    _counters.estimated_ns += summary.estimated_ns
    if summary.unwritten:
        found = summary.unwritten[0]
        raise KernelError(
            "UNWRITTEN",
            f"{name}: {found.position} {list(found.shape)} has {found.num_unwritten} elements "
            f"that no instruction wrote, first at {list(found.first)}",
        )


@contextmanager
def _failures_as_status(name: str, backend: str) -> Iterator[None]:
    """Whatever a runtime raises becomes a KernelError with the status it stands for."""
    try:
        yield
    except KernelError:
        raise
    except Exception as error:  # becomes a status; the traceback travels as its cause
        status = _status_of(error)
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error) or f"{type(error).__name__} at {where.filename}:{where.lineno}"
        raise KernelError(status, f"{name} on {backend}: {type(error).__name__}: {text}") from error


def _status_of(error: Exception) -> str:
    """COMPILE_ERROR for what a compiler would say, RUN_ERROR for what only values show."""
    value = str(getattr(error, "value", ""))
    if "never written" in value or value.startswith(("index ", "scalar offset")):
        return "RUN_ERROR"
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"NkiValidationError", "AssertionError", "SyntaxError", "TypeError", "NameError"}:
        return "COMPILE_ERROR"
    return "COMPILE_ERROR" if any("ompil" in found for found in names) else "RUN_ERROR"


def _as_tensors(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return tuple(_as_tensors(item) for item in result)
    if isinstance(result, torch.Tensor):
        return result.cpu()
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(result.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(result)
