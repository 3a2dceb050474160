"""Lays a configuration out over ranks on the meta device and counts what a step does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.cache.draft_inputs import build_draft_inputs
from engine.cache.state import CacheGeometry, CacheState
from engine.cache.step_inputs import build_step_inputs
from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.engram.hashing import EngramHash
from engine.model.base import Runtime
from engine.model.draft import Draft
from engine.model.transformer import Transformer
from engine.ops import BoundOps
from engine.parallel.expert_exchange import ExpertExchange
from engine.parallel.group import Group
from engine.parallel.topology import Topology
from engine.sampler import Greedy
from engine.schedule.plan import (
    AttentionPath,
    DraftPlan,
    DraftSequence,
    SequenceChunk,
    StepPlan,
)
from engine.shapes.inventory import (
    TensorShape,
    least_step_bytes,
    replicated_step_bytes,
    step_bytes,
    tensor_shapes,
)
from engine.shapes.meta_ops import TABLE
from engine.weights.checkpoint import MetaCheckpoint
from engine.weights.layout import RankLayout
from engine.weights.load import WeightLoader
from engine.weights.tensors import ModelWeights
from harness.core.numerics import Numerics

__all__ = ["LayoutReport", "StepCount", "StepCounter", "lay_out"]

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class StepCount:
    """What one step does on a rank.

    Attributes:
        launches: ops called, by the model's code run on meta tensors.
        collectives: of all layers, embedding and head.
        context: tokens of context bucket it ran with.
    """

    name: str
    num_rows: int
    context: int
    launches: int
    collectives: int


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """A configuration over `num_ranks` ranks; bytes are of weights in their stored formats.

    Attributes:
        tensors: of rank 0.
        resident_bytes: by rank, draft stages and engram tables included.
        engram_table_bytes: of `resident_bytes`, what one copy per host serves for all ranks.
        step_bytes: of the busiest rank in a decode step.
        least_step_bytes: if everything that is divided divided without remainder.
        replicated_step_bytes: of both, what every rank reads alike.
        cache_bytes: of KV pool, rings and tails, per rank.
    """

    num_ranks: int
    numerics: str
    tensors: list[TensorShape]
    resident_bytes: list[int]
    engram_table_bytes: int
    step_bytes: float
    least_step_bytes: float
    replicated_step_bytes: float
    cache_bytes: int
    collectives_per_layer: int
    steps: list[StepCount]


class _MetaGroup(Group):
    def _exchange(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part] * self.size


def lay_out(
    config: ModelConfig, limits: EngineLimits, numerics: Numerics, cp: int, ep: int
) -> LayoutReport:
    """Lay out every rank, run a decode and a prefill step of rank 0 on the meta device.

    Raises:
        UsageError: the ranks do not divide the heads, or ep is no multiple of cp.
        InputError: a slice that does not fit its tensor.
    """
    topology = Topology.sharing(cp, ep)
    num_batches = topology.num_batches
    layouts = [
        RankLayout(config, numerics, rank % cp, cp, topology.batch_of(rank), num_batches)
        for rank in range(topology.num_ranks)
    ]
    shapes, weights = [], None
    for layout in layouts:
        loaded = WeightLoader(MetaCheckpoint(), layout).load()
        weights = weights or loaded
        shapes.append(tensor_shapes(loaded))
    assert weights is not None
    single = RankLayout(config, numerics, 0, 1)
    whole = tensor_shapes(WeightLoader(MetaCheckpoint(), single).load())
    counter = StepCounter(config, limits, numerics, layouts[0], weights)
    return LayoutReport(
        num_ranks=topology.num_ranks,
        numerics=numerics.name,
        tensors=shapes[0],
        resident_bytes=[sum(shape.num_bytes for shape in rank) for rank in shapes],
        engram_table_bytes=sum(
            shape.num_bytes for shape in shapes[0] if ".engram.table" in shape.name
        ),
        step_bytes=max(step_bytes(config, rank, 1, num_batches) for rank in shapes),
        least_step_bytes=least_step_bytes(config, whole, 1, cp, num_batches),
        replicated_step_bytes=replicated_step_bytes(config, whole, 1, num_batches)
        if cp > 1
        else 0.0,
        cache_bytes=counter.state.num_bytes,
        collectives_per_layer=layouts[0].collectives_per_layer,
        steps=[
            counter.count("decode", 1, limits.max_model_len - 1),
            counter.count("prefill", limits.token_bucket, 0),
        ],
    )


class StepCounter:
    """Runs the model's own code of one rank on meta tensors; `ops.observer` sees every call.

    Draft stages take part where `weights` has them and `limits` leave rows to roll back.
    """

    def __init__(
        self,
        config: ModelConfig,
        limits: EngineLimits,
        numerics: Numerics,
        layout: RankLayout,
        weights: ModelWeights,
    ) -> None:
        self._config = config
        self._limits = limits
        self._geometry = CacheGeometry.of(config, limits)
        self.ops = BoundOps(TABLE, numerics)
        self._group = self._experts = _MetaGroup(layout.rank, layout.size)
        if layout.num_batches > 1:
            self._experts = _MetaGroup(layout.expert_rank, layout.num_expert_ranks)
        exchange = ExpertExchange(self._group, self._experts)
        runtime = Runtime(config, self.ops, numerics, layout, self._group, exchange)
        # A draft block may reach past the longest sequence.
        self._model = Transformer(runtime, weights, limits.max_model_len + limits.backtrack)
        self._sampler = Greedy(runtime, layout.vocab_span(config.vocab_size))
        draft = weights.draft if limits.backtrack else None
        self._draft = Draft(runtime, draft, self._model, self._sampler) if draft else None
        num_stages = len(draft.blocks) if draft else 0
        self.state = CacheState(
            config, self._geometry, numerics, _META, num_draft_stages=num_stages
        )
        engram = config.engram
        self._engram: EngramHash | None = None
        if engram is not None:
            token_map = np.arange(config.vocab_size, dtype=np.int64)
            self._engram = EngramHash(engram, token_map % engram.compressed_vocab_size)

    def count(
        self,
        name: str,
        num_rows: int,
        start: int,
        *,
        path: AttentionPath = "decode",
        padded_rows: int = 0,
        num_logits: int = 1,
        num_sequences: int = 1,
    ) -> StepCount:
        """Launches and collectives of one step.

        Args:
            num_rows: of each sequence, from position `start` on.
            padded_rows: of the step; 0: no padding.
            num_logits: rows of each sequence that need logits, its last ones.
        """
        end = start + num_rows
        each = self._limits.pages_for(end)
        chunks = tuple(
            SequenceChunk(
                slot=number,
                start=start,
                token_ids=(0,) * num_rows,
                history=(),
                pages=tuple(range(1, each + 1)),
                num_logits=num_logits,
            )
            for number in range(num_sequences)
        )
        padded = padded_rows or num_rows * num_sequences
        plan = StepPlan(0, chunks, padded, self._limits.context_bucket(end), False, path)
        self._group.start_step(0)
        self._experts.start_step(0)
        before = self.ops.num_launches
        inputs = build_step_inputs(
            plan, self._geometry, frozenset(self._config.ratios) - {0}, self._engram, _META
        )
        step = self._model.context(inputs, self.state)
        x = self._model.run(step)
        if self._draft is not None:
            self._draft.absorb(step.taps, inputs, self.state)
        if inputs.logits_rows.numel():
            self._sampler.stage(self._model.local_logits(x[inputs.logits_rows]))
        return StepCount(
            name=name,
            num_rows=num_rows,
            context=plan.context,
            launches=self.ops.num_launches - before,
            collectives=self._num_collectives(),
        )

    def propose(self, position: int, num_sequences: int = 1) -> None:
        """One proposal of draft blocks after `position`; nothing without draft stages."""
        config = self._config.draft
        if self._draft is None or config is None:
            return
        sequences = tuple(DraftSequence(slot, position, 0) for slot in range(num_sequences))
        inputs = build_draft_inputs(
            DraftPlan(0, sequences),
            self._geometry,
            config.block_size,
            config.noise_token_id,
            _META,
        )
        self._draft.propose(inputs, self.state)

    def _num_collectives(self) -> int:
        if self._experts is self._group:
            return self._group.counts.total()
        return self._group.counts.total() + self._experts.counts.total()
