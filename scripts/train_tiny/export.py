"""Weights of a training run into a checkpoint's files, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scripts.train_tiny.model import TrainableModel
from tiny_checkpoints.inventory import Unit
from tiny_checkpoints.variants import Variant
from tiny_checkpoints.writer import write_checkpoint

__all__ = ["TrainedSource", "spread_scales", "write_trained"]

_TABLE_EXPONENT = -4
_BLOCK, _SPREAD = 32, 4.0


class TrainedSource:
    """What `tiny_checkpoints.writer` draws from: the present values of a model."""

    def __init__(self, model: TrainableModel) -> None:
        self._model = model

    def values(self, unit: Unit) -> npt.NDArray[np.float64]:
        """The parameter in fp64, before it is rounded to its stored form."""
        value: Tensor = self._model.weights.of_unit(unit).detach()
        return value.to(torch.float64).numpy()

    def table_exponents(self, unit: Unit) -> npt.NDArray[np.int32]:
        """One scale for all rows of the Engram table, as in training."""
        rows, width = unit.shape
        return np.full((rows, width // 32), _TABLE_EXPONENT, np.int32)


@torch.no_grad()
def spread_scales(model: TrainableModel) -> None:
    """Make neighbouring blocks of the experts' weights differ in scale, and nothing else.

    Training leaves them alike, and a kernel that reads its neighbour's scale would pass. Every
    second block of 32 channels leaves the norm four times louder and meets weights four times
    quieter: powers of two, so that no rounding changes.
    """
    for layer in range(model.g.num_hidden_layers):
        for name, parameter in model.weights.named():
            if not name.startswith(f"layers.{layer}.ffn"):
                continue
            if name.endswith("ffn_norm.weight"):
                torch.unflatten(parameter, -1, (-1, _BLOCK))[1::2] *= _SPREAD
            elif name.endswith((".w1", ".w3", "gate.weight")):
                torch.unflatten(parameter, -1, (-1, _BLOCK))[..., 1::2, :] /= _SPREAD
    model.weights.forget()


def write_trained(model: TrainableModel, variant: Variant, directory: Path) -> None:
    """Write every file of the checkpoint into an existing directory."""
    write_checkpoint(variant, directory, TrainedSource(model))
