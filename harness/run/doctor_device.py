"""The doctor's findings about a Trainium host: device, cores, LNC, Engram memory, caches, names.

Nothing here imports the SDK: what torch says about its device is asked of a child process, whose
crash is a finding.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.run.compile_cache import CompileCache, compile_caches, compiler_versions
from harness.run.environment import sdk_state
from harness.run.finding import Finding, Level

__all__ = ["engram_bytes", "examine_device", "neuron_processes"]

OUR_PACKAGES = (
    "engine",
    "harness",
    "kernels",
    "references",
    "reports",
    "suites",
    "tiny_checkpoints",
)
_OUR_DISTRIBUTION = "neuron-harness"
_SHM = Path("/dev/shm")
_CHILD_LIMIT_S = 120
_CHILD = """
import json, torch
name = torch._C._get_privateuse1_backend_name()
found = {"name": name, "cores": 0, "lnc": 0}
if name == "neuron":
    found["cores"] = int(torch.get_device_module("neuron").device_count())
    import torch_neuronx.utils as utils
    ask = getattr(utils, "get_logical_neuron_cores", None)
    found["lnc"] = int(ask()) if ask else 0
print(json.dumps(found))
"""


def examine_device(checkpoint: Path | None = None) -> tuple[Finding, ...]:
    """Findings beside those of any host.

    Args:
        checkpoint: whose Engram tables shared memory must hold; None leaves that out.

    Raises:
        InputError: the checkpoint has no readable configuration.
    """
    return (
        *_device(),
        *_processes(neuron_processes()),
        *(() if checkpoint is None else (_engram_memory(checkpoint),)),
        *(_cache(cache) for cache in compile_caches()),
        *_names(),
    )


def _device() -> Iterator[Finding]:
    if not sdk_state("torch-neuronx")[0].has_code:
        yield Finding(
            "neuron device",
            "not registered",
            Level.NOTE,
            "kernels run on the CPU; on a Trainium host run scripts/setup_trn2.sh",
        )
        return
    found, failure = _asked_child()
    if found is None:
        yield Finding(
            "neuron device",
            f"torch does not come up: {failure}",
            Level.PROBLEM,
            "reload the driver (`sudo modprobe -r neuron && sudo modprobe neuron`), then look "
            "at `neuron-ls` and at versions that do not fit each other",
        )
        return
    if found["name"] != "neuron":
        yield Finding(
            "neuron device",
            f"torch's PrivateUse1 device is {found['name']!r}",
            Level.PROBLEM,
            "this torch-neuronx is the XLA product; install the native one (2.13.3 or later) "
            "with scripts/setup_trn2.sh, and leave TORCH_DEVICE_BACKEND_AUTOLOAD unset",
        )
        return
    yield _cores_seen(int(found["cores"]))
    yield _lnc(int(found["lnc"]))


def _asked_child() -> tuple[Mapping[str, Any] | None, str]:
    """What a fresh Python says about the device, or why it said nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD],
            capture_output=True,
            text=True,
            timeout=_CHILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_CHILD_LIMIT_S} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit code {done.returncode} without a word"
    if done.returncode != 0:
        return None, last
    return json.loads(last), ""


def _cores_seen(count: int) -> Finding:
    if count:
        return Finding("neuron device", f"registered, {count} logical cores", Level.OK)
    return Finding(
        "neuron device",
        "registered, no core visible",
        Level.PROBLEM,
        "see NEURON_RT_VISIBLE_CORES, `neuron-ls`, and who holds the cores",
    )


def _lnc(runtime: int) -> Finding:
    """Kernels are specialised for NEURON_LOGICAL_NC_CONFIG; the runtime must agree."""
    stated = os.environ.get("NEURON_LOGICAL_NC_CONFIG", "").strip() or "2"
    if stated not in ("1", "2"):
        return Finding(
            "LNC", f"NEURON_LOGICAL_NC_CONFIG={stated}", Level.PROBLEM, "set it to 1 or 2"
        )
    if runtime and runtime != int(stated):
        return Finding(
            "LNC",
            f"kernels {stated}, runtime {runtime}",
            Level.PROBLEM,
            f"export NEURON_LOGICAL_NC_CONFIG={runtime} before Python starts, or reset the "
            "runtime's; a kernel of another degree is rejected",
        )
    return Finding("LNC", f"kernels {stated}, runtime {runtime or 'does not say'}", Level.OK)


def neuron_processes() -> tuple[Mapping[str, Any], ...] | None:
    """Processes that hold NeuronCores, as neuron-ls tells; None without that tool."""
    tool = shutil.which("neuron-ls")
    if tool is None:
        return None
    done = subprocess.run(
        [tool, "--json-output"], capture_output=True, text=True, timeout=60, check=False
    )
    try:
        devices = json.loads(done.stdout)
    except ValueError:
        return None
    if not isinstance(devices, list):
        return None
    held = [
        process
        for device in devices
        if isinstance(device, dict)
        for process in device.get("neuron_processes") or ()
        if isinstance(process, dict) and "pid" in process
    ]
    return tuple({int(process["pid"]): process for process in held}.values())


def _processes(held: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    if held is None:
        if list(Path("/dev").glob("neuron[0-9]*")):
            yield Finding(
                "neuron cores",
                "neuron-ls is absent or says nothing",
                Level.NOTE,
                "install aws-neuronx-tools and add /opt/aws/neuron/bin to PATH",
            )
        return
    stale = [process for process in held if _is_orphan(int(process["pid"]))]
    busy = [process for process in held if process not in stale]
    if stale:
        pids = " ".join(str(process["pid"]) for process in stale)
        yield Finding(
            "stale processes",
            f"{pids} hold NeuronCores and have lost their parent",
            Level.PROBLEM,
            f"look at them (`ps -fp {pids.replace(' ', ',')}`), then `kill {pids}`",
        )
    if busy:
        named = ", ".join(f"{p['pid']} ({str(p.get('command', '?'))[:40]})" for p in busy)
        yield Finding(
            "neuron cores",
            f"taken by {named}",
            Level.PROBLEM,
            "wait for them, or choose free cores with NEURON_RT_VISIBLE_CORES",
        )
    if not held:
        yield Finding("neuron cores", "all free", Level.OK)


def _is_orphan(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False  # gone, or another user's: not ours to call stale
    return status.rpartition(")")[2].split()[1] == "1"


def engram_bytes(checkpoint: Path) -> int:
    """Bytes of a checkpoint's Engram tables, codes and scales, from its configuration.

    Raises:
        InputError: no readable config.json.
    """
    file = checkpoint / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        text = config.get("text_config", config)
        rows = sum(text.get("engram_num_embeddings", ()))
        width = int(text.get("engram_head_dim", 0))
    except OSError as error:
        raise InputError(file, "file", error.strerror, "give a checkpoint directory") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(file, "content", str(error), "repair the configuration") from error
    return int(rows * (width + width // 32))


def _engram_memory(checkpoint: Path) -> Finding:
    needed, free = engram_bytes(checkpoint), shutil.disk_usage(_SHM).free
    value = f"{free / 2**30:.1f} GiB free, Engram needs {needed / 2**30:.1f} GiB"
    if free >= needed:
        return Finding("engram memory", value, Level.OK)
    return Finding(
        "engram memory",
        value,
        Level.PROBLEM,
        f"`sudo mount -o remount,size={-(-needed // 2**30) + 8}G /dev/shm`, or free what is "
        "left there of ended runs",
    )


def _cache(cache: CompileCache) -> Finding:
    if not cache.is_local:
        return Finding(cache.name, cache.place, Level.OK)
    value = f"{cache.place}, {cache.num_entries} entries"
    if not cache.is_writable():
        return Finding(
            cache.name,
            f"{cache.place} is not writable",
            Level.PROBLEM,
            f"set {cache.variable} to a directory you can write, on a disk that lasts",
        )
    stamped, present = cache.stamped(), compiler_versions()
    if stamped is not None and dict(stamped) != present:
        changed = ", ".join(
            f"{name} {stamped.get(name) or 'absent'} -> {present[name] or 'absent'}"
            for name in present
            if stamped.get(name) != present[name]
        )
        return Finding(
            cache.name,
            f"{value}, filled by another version ({changed})",
            Level.NOTE,
            "its entries will not be used: run `neuron-harness compile` before measuring",
        )
    return Finding(cache.name, value, Level.OK)


def _names() -> Iterator[Finding]:
    """Our import names are common words: another distribution may own one of them."""
    owners = importlib.metadata.packages_distributions()
    for name in OUR_PACKAGES:
        strangers = sorted(set(owners.get(name, ())) - {_OUR_DISTRIBUTION})
        if strangers:
            yield Finding(
                f"package {name}",
                f"also owned by {', '.join(strangers)}",
                Level.PROBLEM,
                f"`pip uninstall {' '.join(strangers)}`, or use an environment without it",
            )
    root = Path(__file__).resolve().parents[2]
    for name in OUR_PACKAGES:
        spec = importlib.util.find_spec(name)
        place = Path(spec.origin).resolve() if spec and spec.origin else None
        if place is None or root not in place.parents:
            yield Finding(
                f"package {name}",
                f"imported from {place}",
                Level.PROBLEM,
                f"another {name} comes first on the path; it must come from {root}",
            )
