"""Muon: the step of a matrix is its momentum with all singular values brought near one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Muon"]

_MOMENTUM = 0.95
_ITERATIONS = 4
# Newton-Schulz polynomial of Keller Jordan's Muon: steep at zero, near one from 0.7 to 1.2.
_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon:
    """For matrices [..., N, K]; those of one shape are orthogonalised together.

    Attributes:
        lr: of the next step.
        momenta: in the order of the parameters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.lr = lr
        self._by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
        for one in parameters:
            self._by_shape.setdefault((one.shape[-2], one.shape[-1]), []).append(one)
        flat = [one for group in self._by_shape.values() for one in group]
        self.momenta = [torch.zeros_like(one, requires_grad=False) for one in flat]
        self._momentum_of = dict(zip(map(id, flat), self.momenta, strict=True))

    @torch.no_grad()
    def step(self) -> None:
        """One step with the present gradients; a matrix without one stays."""
        for (rows, columns), parameters in self._by_shape.items():
            moving = [one for one in parameters if one.grad is not None]
            if not moving:
                continue
            directions = [self._momentum(one).reshape(-1, rows, columns) for one in moving]
            sizes = [len(one) for one in directions]
            steps = torch.split_with_sizes(_orthogonal(torch.cat(directions)), sizes)
            size = self.lr * max(1.0, rows / columns) ** 0.5
            for one, step in zip(moving, steps, strict=True):
                one.add_(step.reshape(one.shape), alpha=-size)

    def _momentum(self, one: nn.Parameter) -> Tensor:
        assert one.grad is not None
        momentum = self._momentum_of[id(one)]
        momentum.lerp_(one.grad, 1 - _MOMENTUM)
        return torch.lerp(one.grad, momentum, _MOMENTUM)


def _orthogonal(matrices: Tensor) -> Tensor:
    """Singular values of each matrix [n, N, K] to about one."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-10)
    for _ in range(_ITERATIONS):
        square = x @ x.transpose(1, 2)
        polynomial = torch.baddbmm(square, square, square, beta=_B, alpha=_C)
        x = torch.baddbmm(x, polynomial, x, beta=_A)
    return x.transpose(1, 2) if is_tall else x
