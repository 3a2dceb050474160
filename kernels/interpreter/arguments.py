"""Host arrays to HBM tensors and back: numpy and torch, without copies where possible."""

from __future__ import annotations

import copy
import sys
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.allocation import input_tensor
from kernels.interpreter.dtypes import DTYPES, DType, dtype_of, widened
from kernels.interpreter.errors import refuse
from kernels.interpreter.memory import MemoryRegion
from kernels.interpreter.nki_object import NKIObject
from kernels.interpreter.program import Launch
from kernels.interpreter.tensor import NkiTensor

__all__ = ["Arguments"]

Array = npt.NDArray[Any]
_IMMUTABLE = (int, float, complex, str, bytes, np.generic, np.dtype, DType, Enum)


class Arguments:
    """The host side of a launch: wraps the arguments, unwraps the results.

    Torch tensors and numpy arrays become HBM tensors over the same memory, so that a kernel's
    writes to an input are seen by the host. Results are torch tensors if an argument was one.
    """

    def __init__(self, precise: bool = True) -> None:
        self._precise = precise
        # What a recording must have in common with this launch; see recording.py.
        self._host: dict[int, tuple[NkiTensor, Any]] = {}
        self._copied_back: list[tuple[NkiTensor, Array, Array]] = []
        self._uses_torch = False
        self.tensors: list[NkiTensor] = []
        self.signature: list[Any] = []

    def watch_races(self, launch: Launch) -> None:
        """Let the inputs refuse conflicting accesses of two programs."""
        for tensor, _ in self._host.values():
            launch.watch_races(tensor.storage, tensor.dtype)

    def wrap(self, value: Any, name: str) -> Any:
        """`value` with every array replaced by a tensor; tuples, lists and dicts are entered."""
        torch = sys.modules.get("torch")
        if isinstance(value, np.ndarray):
            return self._tensor(value, value, dtype_of(value.dtype), name)
        if torch is not None and isinstance(value, torch.Tensor):
            self._uses_torch = True
            kind = dtype_of(value.dtype)
            return self._tensor(value, _torch_to_numpy(torch, value, kind, name), kind, name)
        if isinstance(value, tuple | list):
            self.signature.append((type(value), len(value)))
            items = [self.wrap(item, f"{name}[{i}]") for i, item in enumerate(value)]
            if isinstance(value, list):
                return items
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, dict):
            self.signature.append(tuple(value))
            return {key: self.wrap(item, f"{name}[{key!r}]") for key, item in value.items()}
        if isinstance(value, NKIObject):
            return self._wrap_object(value, name)
        # An argument that could change between calls cannot be part of a recording's key: a list
        # has no hash.
        immutable = value is None or isinstance(value, _IMMUTABLE) or callable(value)
        self.signature.append((type(value), value) if immutable else [])
        return value

    def _wrap_object(self, value: NKIObject, name: str) -> NKIObject:
        """A copy whose attributes are wrapped."""
        self.signature.append([])
        wrapped = copy.copy(value)
        for attribute, item in vars(value).items():
            setattr(wrapped, attribute, self.wrap(item, f"{name}.{attribute}"))
        return wrapped

    def adopt(self, tensors: list[NkiTensor]) -> None:
        """`tensors` stand for this launch's inputs, in order."""
        for ours, theirs in zip(self.tensors, tensors, strict=True):
            self._host[id(theirs.storage)] = (theirs, self._host[id(ours.storage)][1])

    def unwrap(self, value: Any) -> Any:
        """Results as host arrays; a returned input is the caller's own array."""
        if isinstance(value, NkiTensor):
            return self._result(value)
        if isinstance(value, tuple | list):
            items = [self.unwrap(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self.unwrap(item) for key, item in value.items()}
        return value

    def finish(self) -> None:
        """Write inputs that had to be copied back to the caller's arrays."""
        for tensor, dense, original in self._copied_back:
            if tensor.storage.version:
                np.copyto(original, dense, casting="unsafe")

    def _tensor(self, original: Any, array: Array, kind: DType | None, name: str) -> NkiTensor:
        if kind is None:
            refuse(
                name,
                f"dtype {original.dtype}",
                "NKI has no 64-bit types",
                "cast it to float32, int32 or uint32 first",
                instruction="kernel argument",
            )
        if not self._precise and widened(kind) is not kind:
            kind = widened(kind)
            contiguous = np.ascontiguousarray(array, np.float32).reshape(array.shape)
        else:
            contiguous = np.ascontiguousarray(array).reshape(array.shape)
        if not contiguous.flags.writeable:
            contiguous = contiguous.copy()
        tensor = input_tensor(contiguous, kind, name)
        self.tensors.append(tensor)
        self.signature.append((kind.name, tensor.shape))
        if (
            contiguous is not array
            and array.flags.writeable
            and not _same_memory(contiguous, array)
        ):
            self._copied_back.append((tensor, contiguous, array))
        self._host[id(tensor.storage)] = (tensor, original)
        return tensor

    def _result(self, tensor: NkiTensor) -> Any:
        known = self._host.get(id(tensor.storage))
        if known is not None and known[0].shape == tensor.shape:
            return known[1]
        if tensor.buffer is not MemoryRegion.shared_hbm:
            refuse(
                "result",
                f"in {tensor.buffer}",
                "kernels return tensors in nl.shared_hbm",
                "dma_copy the tile to an nl.shared_hbm tensor and return that",
                instruction="return",
            )
        array = tensor.array
        if tensor.dtype.is_widened:
            array = array.astype(DTYPES[tensor.dtype.name].carrier)
        if self._uses_torch:
            kind = DTYPES[tensor.dtype.name]
            return _numpy_to_torch(sys.modules["torch"], array, kind)
        return array


def _same_memory(first: Array, second: Array) -> bool:
    return first.ctypes.data == second.ctypes.data


_BIT_CARRIERS = {1: "uint8", 2: "int16", 4: "int32"}


def _torch_to_numpy(torch: Any, value: Any, kind: DType | None, name: str) -> Array:
    if value.device.type != "cpu":
        refuse(
            name, f"on {value.device}", "a CPU tensor", "call .cpu()", instruction="kernel argument"
        )
    detached = value.detach()
    if kind is None or kind.carrier.isbuiltin == 1:
        result: Array = detached.numpy()
        return result
    # numpy does not know these dtypes: pass their bits.
    bits = getattr(torch, _BIT_CARRIERS[kind.itemsize])
    carried: Array = detached.contiguous().view(bits).numpy().view(kind.carrier)
    return carried


def _numpy_to_torch(torch: Any, array: Array, kind: DType) -> Any:
    if kind.carrier.isbuiltin == 1:
        return torch.from_numpy(np.ascontiguousarray(array))
    name = {"float8_e4m3": "uint8"}.get(kind.name, kind.name)
    bits = {1: np.uint8, 2: np.int16}[kind.itemsize]
    carried = torch.from_numpy(np.ascontiguousarray(array).view(bits))
    return carried.view(getattr(torch, name))
