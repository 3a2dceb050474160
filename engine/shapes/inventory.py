"""Tensors of one rank, and the bytes a decode step reads of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from engine.config.model import ModelConfig
from engine.weights.tensors import ModelWeights
from harness.core.weights import QuantisedWeight

__all__ = [
    "TensorShape",
    "condensed",
    "least_step_bytes",
    "replicated_step_bytes",
    "step_bytes",
    "tensor_shapes",
]

_BLOCK = re.compile(r"blocks\.(\d+)\.")
# Tensors the layout divides over ranks; all others are replicated (model.md §9).
_DIVIDED = re.compile(r"\.(wq_b|wo_a|wo_b|sink|w13|w2|shared_w13|shared_w2)(\.|$)")
_EXPERTS = re.compile(r"\.moe\.(w13|w2)\.")
_INDEXER = ".indexer."
_VOCABULARY = ("embed", "head", "draft.markov_head")


@dataclass(frozen=True, slots=True)
class TensorShape:
    """One tensor as a rank holds it. `name` is the path in ModelWeights."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


def tensor_shapes(weights: ModelWeights) -> list[TensorShape]:
    """Every tensor of a rank, codes and scales apart."""
    return [
        TensorShape(
            name,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            tensor.numel() * tensor.element_size(),
        )
        for name, tensor in _walk("", weights)
    ]


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, QuantisedWeight):
        yield f"{prefix}.codes", value.codes
        yield f"{prefix}.scale", value.scale
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _walk(f"{prefix}.{index}", item)
    elif dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            name = f"{prefix}.{item.name}" if prefix else item.name
            yield from _walk(name, getattr(value, item.name))


def step_bytes(
    config: ModelConfig, shapes: list[TensorShape], num_rows: int, num_batches: int = 1
) -> float:
    """Bytes of weights one backbone step of so many rows a batch reads on a rank.

    Lookup tables count their rows; routed experts count by the expected share that uniform
    routing of all batches' rows visits, E(1 - (1 - k/E)^rows).
    """
    return sum(
        shape.num_bytes * _share_read(config, shape, num_rows, num_batches) for shape in shapes
    )


def least_step_bytes(
    config: ModelConfig,
    whole: list[TensorShape],
    num_rows: int,
    num_ranks: int,
    num_batches: int = 1,
) -> float:
    """The same if everything the layout divides divided without remainder.

    Args:
        whole: the tensors of a single rank that holds the model.
        num_ranks: that share a batch; routed experts are divided over those of all batches.
    """
    total = 0.0
    for shape in whole:
        ranks = num_ranks if _is_divided(shape) else 1
        if _EXPERTS.search(shape.name):
            ranks *= num_batches
        total += shape.num_bytes * _share_read(config, shape, num_rows, num_batches) / ranks
    return total


def replicated_step_bytes(
    config: ModelConfig, shapes: list[TensorShape], num_rows: int, num_batches: int = 1
) -> float:
    """Of `step_bytes`, what every rank reads alike: tensors that the layout does not divide."""
    alike = [shape for shape in shapes if not _is_divided(shape)]
    return step_bytes(config, alike, num_rows, num_batches)


def _is_divided(shape: TensorShape) -> bool:
    if _INDEXER in shape.name:
        return False
    return shape.name in _VOCABULARY or _DIVIDED.search(shape.name) is not None


def _share_read(config: ModelConfig, shape: TensorShape, num_rows: int, num_batches: int) -> float:
    if shape.name.startswith("draft."):
        return 0.0
    if shape.name == "embed":
        return min(1.0, num_rows / shape.shape[0])
    if ".engram.table" in shape.name:
        assert config.engram is not None
        return min(1.0, num_rows * config.engram.rows_per_token / shape.shape[0])
    if _EXPERTS.search(shape.name):
        missed = 1 - config.experts_per_token / config.num_experts
        return float(1 - missed ** (num_rows * num_batches))
    return 1.0


def condensed(shapes: list[TensorShape]) -> list[tuple[str, str, TensorShape]]:
    """Rows (name without layer, layers, one of the tensors) of equal tensors across layers."""
    groups: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    samples: dict[tuple[str, tuple[int, ...], str], TensorShape] = {}
    for shape in shapes:
        match = _BLOCK.search(shape.name)
        name = _BLOCK.sub("blocks.*.", shape.name, count=1)
        key = (name, shape.shape, shape.dtype)
        groups.setdefault(key, []).extend([int(match.group(1))] if match else [])
        samples[key] = shape
    return [(key[0], _ranges(groups[key]), samples[key]) for key in groups]


def _ranges(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
