"""A PrivateUse1 device named neuron in Python: a tensor subclass around a CPU tensor.

Tensors of two devices never meet in an op, as on hardware: only copies take both.
"""

import os
import time
import types

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from torch_neuronx.tracking import note

__all__ = ["NeuronTensor", "register"]

_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to", "aten::_copy_from")


class NeuronTensor(torch.Tensor):
    """`host` is the CPU tensor that stands for the device's memory."""

    @staticmethod
    def __new__(cls, host):
        # A view of a tensor from outside an inference block needs a version counter inside it.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                host.shape,
                strides=host.stride(),
                storage_offset=host.storage_offset(),
                dtype=host.dtype,
                device="neuron:0",
            )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def tolist(self):
        """A real device tensor copies itself to the host here; subclasses cannot."""
        return self.host.tolist()

    def __repr__(self):
        return f"NeuronTensor({self.host!r})"


def _run(op, args, kwargs):
    name = op._schema.name
    note(name)
    _refuse_mixed_devices(name, args, kwargs)
    wrappers = {}

    def to_host(value):
        if isinstance(value, NeuronTensor):
            wrappers[id(value.host)] = value
            return value.host
        return torch.device("cpu") if isinstance(value, torch.device) else value

    result = op(*tree_map(to_host, args), **tree_map(to_host, kwargs))
    named = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.device)]
    leaves_device = any(device.type != "neuron" for device in named)

    def to_device(value):
        if not isinstance(value, torch.Tensor) or isinstance(value, NeuronTensor):
            return value
        if leaves_device:
            return value.clone() if id(value) in wrappers else value
        if id(value) in wrappers:
            return wrappers[id(value)]
        if value.dtype == torch.float64:
            raise RuntimeError(f"{name}: the device has no float64")
        return NeuronTensor(value)

    return tree_map(to_device, result)


def _refuse_mixed_devices(name, args, kwargs):
    if name in _COPIES:
        return
    tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    ours = [t for t in tensors if isinstance(t, NeuronTensor)]
    strangers = [t for t in tensors if not isinstance(t, NeuronTensor) and t.dim() > 0]
    if ours and strangers:
        raise RuntimeError(
            f"{name}: expected all tensors on one device, found neuron:0 and "
            f"{strangers[0].device} {list(strangers[0].shape)}"
        )


class _Event:
    """torch.neuron.Event."""

    def __init__(self, enable_timing=False):
        self.enable_timing = enable_timing
        self.when = None

    def record(self):
        self.when = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.when - self.when) * 1e3


def _module():
    module = types.ModuleType("torch.neuron")
    current = {"device": 0}
    module.num_synchronisations = 0

    def synchronize(device=None):
        module.num_synchronisations += 1

    def set_device(index):
        current["device"] = int(index)

    module.synchronize = synchronize
    module.set_device = set_device
    module.current_device = lambda: current["device"]
    module.device_count = lambda: int(os.environ.get("FAKE_NEURON_DEVICES", "64"))
    module.is_available = lambda: module.device_count() > 0
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.Event = _Event
    return module


def _gloo(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def register():
    """Rename PrivateUse1, answer every op, offer the collective backend. Idempotent."""
    if torch._C._get_privateuse1_backend_name() == "neuron":
        return
    if os.environ.get("FAKE_NEURON_NO_DEVICE"):
        return
    _setup_privateuseone_for_python_backend("neuron", _module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    register.library = library  # lives as long as the process
    dist.Backend.register_backend("neuron", _gloo, devices=["neuron", "cpu"])
