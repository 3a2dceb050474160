"""Where a result came from: the fingerprint every record carries."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.core.errors import UsageError
from harness.core.suggest import near_names

__all__ = ["ResultOrigin", "SdkState", "fingerprint", "has_device_node", "origin_of", "sdk_state"]

# Modules that the real packages have and the empty placeholders of the public index lack; of
# torch-neuronx, the native backend has the first and the earlier XLA product the second.
_SDK_PACKAGES = {
    "nki": ("nki", ("language",)),
    "torch-neuronx": ("torch_neuronx", ("utils", "xla_impl")),
    "neuronx-cc": ("neuronxcc", ("nki",)),
}


class ResultOrigin(Enum):
    """What executed the kernels. Only DEVICE says anything about hardware speed.

    STAND_IN is none of the three states: the code paths of a device or of the official simulator
    ran, on doubles of its modules.
    """

    CPU_INTERPRETER = "cpu-interpreter"
    OFFICIAL_SIMULATOR = "official-simulator"
    DEVICE = "device"
    STAND_IN = "stand-in"


class SdkState(Enum):
    """Whether a package of the SDK is there, or only its name, or a double of it."""

    ABSENT = "absent"
    PLACEHOLDER = "placeholder"
    REAL = "real"
    STAND_IN = "stand-in"

    @property
    def has_code(self) -> bool:
        """Whether the package can be imported and called."""
        return self in (SdkState.REAL, SdkState.STAND_IN)


# A package that holds this file says of itself that it is a double.
_STAND_IN_MARKER = "STAND_IN"
_DEVICE_NODES = "neuron[0-9]*"
_ORIGINS = {
    "interpret": ResultOrigin.CPU_INTERPRETER,
    "simulate": ResultOrigin.OFFICIAL_SIMULATOR,
    "device": ResultOrigin.DEVICE,
}


def origin_of(backend: str) -> ResultOrigin:
    """The origin of what a backend ("interpret", "simulate", "device") computes here.

    A double of the SDK gives STAND_IN, whatever was asked for; so does a torch-neuronx that has no
    device node to talk to.

    Raises:
        UsageError: no such backend; the message lists near names.
    """
    if backend not in _ORIGINS:
        raise UsageError(f"backend {backend!r} is not known{near_names(backend, _ORIGINS)}")
    if backend == "interpret":
        return _ORIGINS[backend]
    states = {name: sdk_state(name)[0] for name in ("nki", "torch-neuronx")}
    if backend == "simulate":
        is_double = states["nki"] is SdkState.STAND_IN
    else:
        is_double = SdkState.STAND_IN in states.values() or (
            states["torch-neuronx"] is SdkState.REAL and not has_device_node()
        )
    return ResultOrigin.STAND_IN if is_double else _ORIGINS[backend]


def has_device_node() -> bool:
    """Whether the driver shows a device: without /dev/neuron0 nothing can have run on one."""
    return any(Path("/dev").glob(_DEVICE_NODES))


def sdk_state(distribution: str) -> tuple[SdkState, str]:
    """State and version of "nki", "torch-neuronx" or "neuronx-cc", without importing it.

    The public index serves empty packages under these names: a version alone proves nothing.
    """
    package, landmarks = _SDK_PACKAGES[distribution]
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return (SdkState.PLACEHOLDER if version else SdkState.ABSENT), version
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / _STAND_IN_MARKER).is_file() for folder in folders):
        return SdkState.STAND_IN, version
    real = any(any(folder.glob(f"{name}*")) for folder in folders for name in landmarks)
    return (SdkState.REAL if real else SdkState.PLACEHOLDER), version


def fingerprint(seeds: Mapping[str, int] | None = None, *, backend: str = "") -> dict[str, Any]:
    """What must be equal for two results to be comparable, and what explains a difference.

    Args:
        seeds: name -> seed of every random source of the run.
        backend: what runs the kernels, if any do.
    """
    sdk = {name: sdk_state(name) for name in _SDK_PACKAGES}
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": platform.platform(terse=True),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "blas": _blas_name(),
        "git": _git_revision(Path(__file__).resolve().parents[2]),
        "sdk": {name: {"state": state.value, "version": v} for name, (state, v) in sdk.items()},
        "origin": origin_of(backend).value if backend else None,
        "seeds": dict(seeds or {}),
    }


def _cpu_model() -> str:
    """The kernel's name of the CPU; platform.processor() is empty on most Linux systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _blas_name() -> str:
    return "mkl" if torch._C.has_mkl else "other"


def _git_revision(checkout: Path) -> str | None:
    """Revision, with "+dirty" where tracked files differ; None outside a git checkout."""
    if not (checkout / ".git").exists():
        return None
    revision = _git_output(checkout, "rev-parse", "HEAD")
    if revision is None:
        return None
    changes = _git_output(checkout, "status", "--porcelain", "--untracked-files=no")
    return f"{revision}+dirty" if changes else revision


def _git_output(checkout: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
