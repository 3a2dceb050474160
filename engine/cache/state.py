"""The tensors that outlive a step (model.md §3.1).

Caches hold activation-dtype numbers that lie on their grids: the same values as packed bytes.
Legend: L layers, Q sequence slots, D head dim, x index head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.precision import accumulate_dtype, activation_dtype
from harness.core.numerics import Numerics

__all__ = ["CacheGeometry", "CacheState"]


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """Sizes that the indices of a step depend on.

    Rings hold `window + backtrack` positions, so that rows which are rolled back have not yet
    overwritten what the window of the kept rows needs.
    """

    window: int
    ring: int
    tail: int
    page_size: int
    num_pages: int
    num_slots: int

    @classmethod
    def of(cls, config: ModelConfig, limits: EngineLimits) -> CacheGeometry:
        """The geometry of a model under the engine's limits."""
        largest_ratio = max((*config.ratios, 1))
        return cls(
            window=config.window,
            ring=config.window + limits.backtrack,
            tail=max(1, largest_ratio - 1 + limits.backtrack),
            page_size=limits.page_size,
            num_pages=limits.num_pages,
            num_slots=limits.max_num_seqs,
        )


class CacheState:
    """Rings [L*Q*ring, D], tails [Q*tail, 2D] by owner, entry pools by owner.

    An owner's pool has num_pages * page_size / ratio rows: D wide for compressed KV, x wide for
    index keys. Page 0 belongs to nobody; writes of padding go there. Rings of draft stages follow
    those of the layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        geometry: CacheGeometry,
        numerics: Numerics,
        device: torch.device,
        *,
        num_draft_stages: int = 0,
    ) -> None:
        self.geometry = geometry
        act, acc = activation_dtype(numerics), accumulate_dtype(numerics)
        ring_rows = geometry.num_slots * geometry.ring
        self.rings = [
            torch.zeros(ring_rows, config.head_dim, dtype=act, device=device)
            for _ in range(config.num_layers + num_draft_stages)
        ]
        self.tails: dict[int, torch.Tensor] = {}
        self.compressed: dict[int, torch.Tensor] = {}
        self.index_keys: dict[int, torch.Tensor] = {}
        for owner in config.kv_sources:
            ratio = config.ratios[owner]
            entries = geometry.num_pages * geometry.page_size // ratio
            self.compressed[owner] = torch.zeros(entries, config.head_dim, dtype=act, device=device)
            self.index_keys[owner] = torch.zeros(
                entries, config.index.head_dim, dtype=act, device=device
            )
            if ratio > 1:
                self.tails[owner] = torch.zeros(
                    geometry.num_slots * geometry.tail,
                    2 * config.head_dim,
                    dtype=acc,
                    device=device,
                )

    @property
    def num_bytes(self) -> int:
        """Bytes of all caches."""
        tensors = [*self.rings, *self.tails.values()]
        tensors += [*self.compressed.values(), *self.index_keys.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
