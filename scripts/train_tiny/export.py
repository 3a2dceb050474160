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

__all__ = ["TrainedSource", "write_trained"]

_TABLE_EXPONENT = -4


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


def write_trained(model: TrainableModel, variant: Variant, directory: Path) -> None:
    """Write every file of the checkpoint into an existing directory."""
    write_checkpoint(variant, directory, TrainedSource(model))
