"""Double of the NKI face of torch-neuronx: kernels take and give tensors of the device."""

import inspect

import torch

from torch_neuronx.utils import get_logical_neuron_cores

__all__ = ["nki_op", "wrap_nki"]

_ops = set()


def wrap_nki(kernel):
    """`wrap_nki(kernel)[lnc](*tensors)`, as the real one; a bare call is LNC 1."""
    return _Wrapped(kernel, 1)


class _Wrapped:
    def __init__(self, kernel, lnc):
        self._kernel, self._lnc = kernel, lnc

    def __getitem__(self, grid):
        return _Wrapped(self._kernel, grid[0] if isinstance(grid, tuple) else grid)

    def __call__(self, *args):
        from torch_neuronx.device import NeuronTensor

        if self._lnc != get_logical_neuron_cores():
            raise RuntimeError(
                f"kernel LNC degree {self._lnc} differs from the runtime's "
                f"{get_logical_neuron_cores()}"
            )
        for value in args:
            if isinstance(value, torch.Tensor) and not isinstance(value, NeuronTensor):
                raise RuntimeError(f"a kernel argument is on {value.device}, not on neuron")
        hosts = [v.host if isinstance(v, NeuronTensor) else v for v in args]
        kernel = self._kernel[self._lnc] if self._lnc > 1 else self._kernel
        result = kernel(*hosts)
        if isinstance(result, (tuple, list)):
            return tuple(NeuronTensor(item) for item in result)
        return NeuronTensor(result)


def nki_op(name, *, mutates_args):
    """Decorator: registers a fully annotated function as an op."""

    def register(function):
        if name in _ops:
            raise RuntimeError(f"op {name} is registered twice")
        schema = torch.library.infer_schema(function, mutates_args=tuple(mutates_args))
        _ops.add(name)

        def call(*args):
            num_parameters = len(inspect.signature(function).parameters)
            if len(args) != num_parameters:
                raise TypeError(f"{name}{schema} got {len(args)} arguments")
            return function(*args)

        call.schema = schema
        return call

    return register
