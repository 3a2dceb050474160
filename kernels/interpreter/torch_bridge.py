"""Kernels as torch operators: one opaque node in eager mode and inside torch.compile.

double = torch_operator(
    "my_kernels::double", "(Tensor x) -> Tensor", double_kernel, torch.empty_like
)
double(x); torch.compile(lambda x: double(x) + 1, fullgraph=True)(x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["torch_operator"]


def torch_operator(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any],
    mutates: Iterable[str] = (),
) -> Callable[..., Any]:
    """Register `kernel` as a custom operator of torch.

    Args:
        name: "namespace::name".
        schema: parameters and results in torch's schema language.
        kernel: what nki.jit made, or a function that launches it. It may not return one of its
            inputs: torch's operators do not alias. Name mutated inputs in `mutates` and return
            nothing for them.
        shapes: the shape function: same parameters, returns empty tensors of the results' shapes
            and dtypes; it runs on fake tensors.
        mutates: parameters that the kernel writes.

    Returns:
        The operator, to be called like a function.
    """
    import torch

    def run(*arguments: Any) -> Any:
        return kernel(*[_dense(argument, torch) for argument in arguments])

    operator = torch.library.custom_op(name, run, mutates_args=tuple(mutates), schema=schema)
    operator.register_fake(shapes)
    found: Callable[..., Any] = operator
    return found


def _dense(argument: Any, torch: Any) -> Any:
    return argument.detach() if isinstance(argument, torch.Tensor) else argument
