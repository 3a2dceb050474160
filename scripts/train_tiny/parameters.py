"""Trainable parameters under the checkpoint's names, experts of a layer stacked."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from scripts.train_tiny.rounding import as_stored
from tiny_checkpoints.geometry import Geometry
from tiny_checkpoints.inventory import Unit, inventory

__all__ = ["Parameters"]

_MATCHING_SEED = 67280421310720
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(w\d)")
_NOT_TRAINED = ("gate.bias", "gate.bias_vl")
_BRANCH_ENDS = ("wo_b", ".w2", "engram.wkv")


class Parameters(nn.Module):
    """Weights by name.

    Attributes:
        rounds_weights: whether the forward sees them as the files will hold them.
    """

    def __init__(self, geometry: Geometry, seed: int) -> None:
        super().__init__()
        self.rounds_weights = False
        self.forms: dict[str, str] = {}
        self._cache: dict[str, Tensor] = {}
        self.values = nn.ParameterDict()
        generator = torch.Generator().manual_seed(seed)
        stacked: dict[str, list[Tensor]] = {}
        for unit in inventory(geometry):
            name, _ = stack_name(unit.name)
            self.forms[name] = unit.form
            stacked.setdefault(name, []).append(_initial(unit, geometry, generator))
        for name, tensors in stacked.items():
            one = torch.stack(tensors) if ".experts." in name else tensors[0]
            trains = not name.endswith(_NOT_TRAINED)
            self.values[_key(name)] = nn.Parameter(one, requires_grad=trains)
        with torch.no_grad():
            head = self.values["head/weight"]
            head.copy_(self.values["embed/weight"] * 0.5 * geometry.hidden_size**-0.5)
        generator.manual_seed(_MATCHING_SEED + seed)
        for layer in range(geometry.num_hidden_layers):
            self._begin_with_matching(f"layers.{layer}.attn", geometry, generator)

    @torch.no_grad()
    def _begin_with_matching(self, name: str, g: Geometry, random: torch.Generator) -> None:
        """Heads that look for rows like their own and hand on what they read.

        Queries start near keys and outputs near the transposed values; from random weights the
        same circuits take several times as many steps to appear.
        """
        wkv, wq_a, wq_b, wo_a, wo_b = (
            self.values[_key(f"{name}.{leaf}")] for leaf in ("wkv", "wq_a", "wq_b", "wo_a", "wo_b")
        )
        nn.init.orthogonal_(wq_a, generator=random)
        per_head = wkv @ wq_a.T
        wq_b.mul_(0.5).add_(0.25 * per_head.repeat(g.num_attention_heads, 1))
        for group in wo_a.split(g.o_lora_rank):
            for head in group.split(g.head_dim, dim=1):
                nn.init.orthogonal_(head, generator=random)
        read = [group @ wkv for group in wo_a[:, : g.head_dim].split(g.o_lora_rank)]
        wo_b.mul_(0.5).add_(torch.cat([one.T for one in read], 1) * 0.15)

    def forget(self) -> None:
        """Drop the rounded values: parameters have changed."""
        self._cache.clear()

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self.values[_key(name)]
        if not self.rounds_weights:
            return value
        if name not in self._cache:
            self._cache[name] = as_stored(value, self.forms[name])
        return self._cache[name]

    def of_unit(self, unit: Unit) -> Tensor:
        """The present value of one stored parameter."""
        name, expert = stack_name(unit.name)
        value: Tensor = self.values[_key(name)]
        return value if expert is None else value[expert]

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(official name, parameter), stacked experts under `...experts.w1`."""
        for name in self.forms:
            yield name, self.values[_key(name)]


def stack_name(name: str) -> tuple[str, int | None]:
    """The name of the stack a parameter belongs to, and its place there."""
    found = _EXPERT.fullmatch(name)
    return (f"{found[1]}.{found[3]}", int(found[2])) if found else (name, None)


def _key(name: str) -> str:
    return name.replace(".", "/")


def _initial(unit: Unit, g: Geometry, generator: torch.Generator) -> Tensor:
    name, shape = unit.name, unit.shape

    def normal(sigma: float) -> Tensor:
        return torch.randn(shape, generator=generator) * sigma

    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return torch.ones(shape)
    if name.endswith("attn_sink"):
        return torch.full(shape, 1.0)
    if name.endswith(_NOT_TRAINED):
        return torch.zeros(shape)
    if name.endswith("_fn"):
        return normal(0.01)
    if name.endswith("_scale"):
        return torch.ones(shape)
    if name.endswith("_base"):
        m = g.hc_mult
        values = normal(0.3)
        values[2 * m :: m + 1] += 2.0
        return values
    if name == "embed.weight":
        return normal(1.0)
    if name.endswith("engram.embed"):
        return normal(0.5)
    gain = 0.5 if name.endswith(_BRANCH_ENDS) else 1.0
    return normal(gain * shape[-1] ** -0.5)
