"""A kernel on a NeuronCore: registered as a torch op through torch-neuronx, called on its tensors.

A launch whose tensors all come from the host is a measurement of one kernel: they are copied in
and its outputs out. A launch that already has a tensor on the device is part of a model: its
outputs stay there, and its host tensors are constants (weights that were laid out on the host), of
which the device keeps a copy as long as the host's lives.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from harness.core.errors import UsageError

__all__ = ["call_on_device", "fallbacks", "forget_fallbacks", "require_runtime_lnc"]

_DEVICE = "neuron"
# What the schema of a torch op can say; a kernel with other arguments is called without one.
_PLAIN = (torch.Tensor, bool, int, float, str)
_ops: dict[str, Callable[..., Any]] = {}
_constants: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


def require_runtime_lnc(lnc: int) -> None:
    """Refuse a launch whose LNC degree is not the runtime's.

    Raises:
        UsageError: they differ; names both and the variable to set.
    """
    parts = importlib.import_module("torch_neuronx.utils")
    found = getattr(parts, "get_logical_neuron_cores", None)
    runtime = lnc if found is None else int(found())
    if runtime != lnc:
        raise UsageError(
            f"kernels are specialised for LNC {lnc}, the Neuron runtime runs LNC {runtime}: set "
            f"NEURON_LOGICAL_NC_CONFIG={lnc} before Python starts, and the same for the runtime"
        )


def call_on_device(kernel: Any, lnc: int, arguments: Sequence[Any]) -> Any:
    """Outputs of a kernel: one tensor or a tuple, on the host where all inputs were there.

    Args:
        kernel: what `nki.jit` made.
        lnc: physical cores.
        arguments: contiguous tensors of either device, and compile-time constants.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    stays = any(tensor.device.type == _DEVICE for tensor in tensors)
    place = _constant if stays else _copied
    moved = [place(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    outputs = _callable(kernel, lnc, moved)(*moved)
    if not stays:
        outputs = [output.cpu() for output in outputs]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def fallbacks() -> Mapping[str, int]:
    """Ops that ran on the CPU since `forget_fallbacks`, with their calls.

    Raises:
        AttributeError: this torch-neuronx keeps no list of them.
    """
    return Counter(importlib.import_module("torch_neuronx").get_fallback_ops())


def forget_fallbacks() -> None:
    """Start counting afresh."""
    importlib.import_module("torch_neuronx").clear_op_tracking()


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_DEVICE)


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    """The device's copy of a host tensor, made once in the host tensor's life."""
    if tensor.device.type == _DEVICE:
        return tensor
    key = id(tensor)
    if key not in _constants:
        owner = weakref.ref(tensor, lambda _: _constants.pop(key, None))
        _constants[key] = owner, tensor.to(_DEVICE)
    return _constants[key][1]


def _callable(kernel: Any, lnc: int, arguments: Sequence[Any]) -> Callable[..., list[torch.Tensor]]:
    """The kernel as an op with a schema where its arguments have one."""

    def body(*values: Any) -> list[torch.Tensor]:
        from torch_neuronx import wrap_nki

        result = wrap_nki(kernel)[lnc](*values)
        return list(result) if isinstance(result, tuple | list) else [result]

    if not all(isinstance(value, _PLAIN) for value in arguments):
        return body
    name = _op_name(kernel, lnc, arguments)
    if name not in _ops:
        from torch_neuronx import nki_op

        body.__signature__ = _signature(arguments)  # type: ignore[attr-defined]
        _ops[name] = nki_op(name, mutates_args={})(body)
    return _ops[name]


def _op_name(kernel: Any, lnc: int, arguments: Sequence[Any]) -> str:
    stem = getattr(kernel, "__name__", "kernel")
    types = ",".join(_type_of(value).__name__ for value in arguments)
    identity = f"{getattr(kernel, '__module__', '')}.{stem}/{lnc}/{types}"
    return f"neuron_harness::{stem}_{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _signature(arguments: Sequence[Any]) -> inspect.Signature:
    """a0, a1, …: the kinds of these arguments; one list of tensors comes back."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(f"a{place}", kind, annotation=_type_of(value))
        for place, value in enumerate(arguments)
    ]
    return inspect.Signature(parameters, return_annotation=list[torch.Tensor])


def _type_of(value: Any) -> type:
    return next(plain for plain in _PLAIN if isinstance(value, plain))
