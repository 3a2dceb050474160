"""What this machine offers, what stands in the way, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path

from harness.run.doctor_device import examine_device
from harness.run.environment import SdkState, sdk_state
from harness.run.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]

_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 11), (3, 14)
# AWS publishes its wheels from this version on.
_NEURON_PYTHON = (3, 12)
_PACKAGES = ("torch", "numpy", "safetensors", "ml_dtypes", "pandas", "matplotlib", "tokenizers")
_SDK = ("nki", "torch-neuronx", "neuronx-cc")
_SHM = Path("/dev/shm")
_MIN_SHM_BYTES = 256 * 1024**2


def examine(checkpoint: Path | None = None) -> tuple[Finding, ...]:
    """Every finding, in the order people read them. Imports none of the packages it looks for.

    Args:
        checkpoint: whose Engram tables this host shall hold; None looks at no checkpoint.
    """
    return (
        _python(),
        *(_package(name) for name in _PACKAGES),
        _torch_build(),
        *(_sdk(name) for name in _SDK),
        _devices(),
        _cores(),
        _memory(),
        _shared_memory(),
        *examine_device(checkpoint),
    )


def _python() -> Finding:
    version = platform.python_version()
    if not _OLDEST_PYTHON <= sys.version_info[:2] <= _NEWEST_PYTHON:
        return Finding(
            "python", version, Level.PROBLEM, "use Python 3.11 to 3.14; `make setup` finds one"
        )
    if sys.version_info[:2] < _NEURON_PYTHON:
        return Finding(
            "python", version, Level.OK, "AWS's Neuron wheels need 3.12 or later on a device host"
        )
    return Finding("python", version, Level.OK)


def _package(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name), Level.OK)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "absent", Level.PROBLEM, "run `make setup`")


def _torch_build() -> Finding:
    """A CUDA stack is gigabytes that nothing here uses."""
    cuda = sorted(
        name
        for distribution in importlib.metadata.distributions()
        if (name := str(distribution.metadata["Name"])).startswith(("nvidia-", "nvidia_"))
    )
    if cuda:
        return Finding(
            "cuda stack",
            f"{len(cuda)} nvidia packages",
            Level.NOTE,
            "nothing here uses them; `make clean && make setup` takes a CPU build of torch",
        )
    return Finding("cuda stack", "absent", Level.OK)


def _sdk(name: str) -> Finding:
    state, version = sdk_state(name)
    if state is SdkState.REAL:
        return Finding(name, f"real, {version or 'unknown version'}", Level.OK)
    if state is SdkState.STAND_IN:
        return Finding(
            name,
            "a double for tests",
            Level.NOTE,
            "what runs on it is recorded as stand-in, never as a device; take it off PYTHONPATH "
            "to measure",
        )
    if state is SdkState.PLACEHOLDER:
        return Finding(
            name,
            f"placeholder {version}",
            Level.NOTE,
            f"`pip uninstall {name}`; the real one is in AWS's package index "
            "(https://pip.repos.neuron.amazonaws.com)",
        )
    return Finding(
        name,
        "absent",
        Level.NOTE,
        "kernels run on the bundled interpreter; on a Neuron host activate its environment",
    )


def _devices() -> Finding:
    devices = sorted(Path("/dev").glob("neuron[0-9]*"))
    if devices:
        return Finding("neuron devices", str(len(devices)), Level.OK)
    return Finding(
        "neuron devices", "none", Level.NOTE, "use --backend interpret, or run on a Trainium host"
    )


def _cores() -> Finding:
    num_cores = len(os.sched_getaffinity(0))
    if num_cores < 2:
        return Finding(
            "cores", str(num_cores), Level.NOTE, "give the process two cores; cp ranks share them"
        )
    return Finding("cores", str(num_cores), Level.OK)


def _memory() -> Finding:
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    value = f"{total_bytes / 1024**3:.1f} GiB"
    if total_bytes < 4 * 1024**3:
        return Finding("memory", value, Level.NOTE, "four ranks of torch take about 2 GiB")
    return Finding("memory", value, Level.OK)


def _shared_memory() -> Finding:
    """Ranks exchange metadata and share Engram tables there."""
    if not os.access(_SHM, os.W_OK):
        return Finding("/dev/shm", "not writable", Level.PROBLEM, "mount a tmpfs on /dev/shm")
    free_bytes = shutil.disk_usage(_SHM).free
    value = f"{free_bytes / 1024**2:.0f} MiB free"
    if free_bytes < _MIN_SHM_BYTES:
        return Finding(
            "/dev/shm",
            value,
            Level.PROBLEM,
            "free it or enlarge it (`docker run --shm-size 1g`); cp ranks need it",
        )
    return Finding("/dev/shm", value, Level.OK)
