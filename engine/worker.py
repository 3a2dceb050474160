"""One rank at work: weights, caches and the model; executes step plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.draft_inputs import build_draft_inputs
from engine.cache.state import CacheGeometry, CacheState
from engine.cache.step_inputs import StepInputs, build_step_inputs
from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.device.base import Device
from engine.device.neuron import open_device
from engine.device.ops import ops_for_device
from engine.device.placement import on_device
from engine.engram.hashing import EngramHash
from engine.engram.token_map import load_token_map
from engine.graphs.buckets import draft_buckets, step_buckets
from engine.graphs.compilers import resolve_compiler
from engine.graphs.graph_key import graph_key
from engine.graphs.graph_store import GraphStore, cache_root
from engine.graphs.region_graphs import RegionGraphs
from engine.graphs.region_times import RegionTimes
from engine.model.base import Runtime
from engine.model.context import StepContext
from engine.model.draft import Draft, Proposal
from engine.model.transformer import Transformer
from engine.ops import BoundOps
from engine.outputs import DraftOutput, StepOutput
from engine.parallel.expert_exchange import ExpertExchange
from engine.parallel.group import Group
from engine.precision import parameter_dtype
from engine.sampler import Greedy, Top
from engine.schedule.plan import DraftPlan, StepPlan
from engine.weights.checkpoint import Checkpoint, TensorSource
from engine.weights.layout import RankLayout
from engine.weights.load import WeightLoader
from harness.core.engine_face import EngineSettings
from harness.core.errors import RankError, UsageError
from harness.core.numerics import Numerics, numerics_named
from harness.core.op_table import OpTable, resolve_op_table

__all__ = ["DraftOutput", "StepOutput", "Worker", "resolve_numerics"]


def resolve_numerics(settings: EngineSettings) -> Numerics:
    """The mode of the settings, on the fp8 grid they force or their ops need."""
    mode = numerics_named(settings.numerics)
    table_grid = resolve_op_table(settings.ops).fp8_max
    grid = settings.fp8_max or table_grid or mode.fp8_max
    if grid not in (240, 448):
        raise RankError(0, f"op table asks for the unknown fp8 grid {grid}")
    return Numerics(
        mode.name,
        mode.activation,
        mode.accumulate,
        mode.quantise,
        fp8_max=240 if grid == 240 else 448,
    )


class Worker:
    """Loads one rank and runs steps. The caller decides what runs; a worker never schedules.

    Args:
        group: the ranks that share this rank's batch.
        source: where weights come from; None reads the checkpoint's files.
        experts: the ranks that share the experts; None where it is `group`.

    Attributes:
        last_proposal: tensors of the last `propose`, for inspection.
        region_times: once `start_region_timing` was called.

    Raises:
        InputError: the checkpoint does not fit its configuration.
        UsageError: the ranks do not divide the heads.
    """

    def __init__(
        self,
        settings: EngineSettings,
        config: ModelConfig,
        limits: EngineLimits,
        group: Group,
        device: Device | None = None,
        source: TensorSource | None = None,
        *,
        experts: Group | None = None,
    ) -> None:
        numerics = resolve_numerics(settings)
        self.group = group
        self.experts = experts or group
        self.config = config
        num_batches = self.experts.size // group.size
        batch = self.experts.rank // group.size
        self.layout = RankLayout(config, numerics, group.rank, group.size, batch, num_batches)
        # Opened by whoever joins the group; ranks that share a process share their device.
        self._device = device or open_device(settings.device, 0)
        self.device = self._device.torch_device
        table = ops_for_device(resolve_op_table(settings.ops), self.device)
        self.ops = BoundOps(table, numerics)
        self._limits = limits
        self._geometry = CacheGeometry.of(config, limits)
        self._ratios = frozenset(config.ratios) - {0}
        self._engram = (
            EngramHash(config.engram, load_token_map(settings.checkpoint, config))
            if config.engram
            else None
        )
        files = source or Checkpoint(settings.checkpoint)
        loader = WeightLoader(files, self.layout, parameter_dtype(numerics))
        self._exchange = ExpertExchange(group, self.experts)
        self._moe_capacity = settings.moe_capacity
        runtime = Runtime(config, self.ops, numerics, self.layout, group, self._exchange)
        loaded = loader.load(with_draft=bool(settings.speculative))
        self.weights = on_device(loaded, self.device)
        # A draft block may reach past the longest sequence.
        self.model = Transformer(runtime, self.weights, limits.max_model_len + limits.backtrack)
        self.last_proposal: Proposal | None = None
        self.region_times: RegionTimes | None = None
        self._sampler = Greedy(runtime, self.layout.vocab_span(config.vocab_size))
        self.draft: Draft | None = None
        if self.weights.draft is not None:
            self.draft = Draft(runtime, self.weights.draft, self.model, self._sampler)
        self._graphs: tuple[RegionGraphs, ...] = ()
        if not settings.enforce_eager:
            self._compile_regions(settings, numerics)
        self.state = CacheState(
            config,
            self._geometry,
            numerics,
            self.device,
            num_draft_stages=len(self.weights.draft.blocks) if self.weights.draft else 0,
        )

    def _compile_regions(self, settings: EngineSettings, numerics: Numerics) -> None:
        """Let layers, and draft stages, run as graphs."""
        _require_capturable(self.ops.table, self.device)
        key = graph_key(self.config, self.layout, numerics, settings.ops)
        store = GraphStore(cache_root(), key)
        compiler = resolve_compiler(settings.compile_backend, self.device, store)
        buckets = step_buckets(self._limits, self._ratios, self.layout.num_batches)
        graphs = RegionGraphs(compiler, buckets)
        self.model.compile_regions(graphs)
        self._graphs = (graphs,)
        if self.draft is not None and self.config.draft is not None:
            of_drafts = draft_buckets(self._limits, self.config.draft.block_size)
            graphs = RegionGraphs(compiler, of_drafts)
            self.draft.compile_regions(graphs)
            self._graphs = (*self._graphs, graphs)

    def announce_compilation(self, announce: Callable[[str], object]) -> None:
        """Call `announce` with a region's kind before each graph that is made from now on."""
        for graphs in self._graphs:
            graphs.announce = announce

    @property
    def num_graphs(self) -> int:
        """Region graphs that were made or read so far."""
        return sum(len(graphs) for graphs in self._graphs)

    @property
    def num_cached_graphs(self) -> int:
        """Those of them that came from disk."""
        return sum(graphs.num_cached for graphs in self._graphs)

    def start_region_timing(self) -> None:
        """Time regions, collectives and ops of all further steps; once is enough."""
        if self.region_times is not None:
            return
        on_cpu = self.device.type == "cpu"
        wait = None if on_cpu else torch.get_device_module(self.device.type).synchronize
        self.region_times = times = RegionTimes(wait)
        self.model.time_regions(times)
        for group in self._groups():
            group.gather = times.timed_collective(group.gather)  # type: ignore[method-assign]
        for name in self.ops.table.ops:
            setattr(self.ops, name, times.timed_op(name, getattr(self.ops, name)))
        timed = times.timed_step(self.execute)

        def execute(plan: StepPlan) -> StepOutput:
            output, account = timed(plan)
            return replace(output, times=account)

        self.execute = execute  # type: ignore[method-assign]

    def _groups(self) -> tuple[Group, ...]:
        """Whom this rank exchanges with; a group of one exchanges nothing."""
        groups = dict.fromkeys((self.group, self.experts))
        return tuple(group for group in groups if group.size > 1)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step: caches are written, ids of the wanted rows returned.

        Raises:
            RankError: the step made another number of collectives than model.md §9 says.
        """
        launches_before = self._start_step(plan.step)
        self._exchange.start_step(self._moe_capacity if plan.has_prompt_rows else 0)
        with torch.inference_mode():
            inputs = build_step_inputs(
                plan,
                self._geometry,
                self._ratios,
                self._engram,
                self.device,
                padded_sequences=self._padded_sequences(len(plan.chunks)),
            )
            step = self.model.context(inputs, self.state)
            x = self.model.run(step)
            if self.draft is not None:
                self.draft.absorb(step.taps, inputs, self.state)
            sampled = self._sample(x, inputs, plan)
            excluded = self._blocks_excluded(step)
        self._check_collectives(self.config.num_layers, 1 + _num_gathers(plan, inputs))
        counters = self._counters(launches_before)
        return replace(sampled, blocks_excluded=excluded, counters=counters)

    def propose(self, plan: DraftPlan) -> DraftOutput:
        """Draft a block for each sequence after its last committed position.

        Raises:
            RankError: another number of collectives than the layout implies.
        """
        config = self.config.draft
        assert config is not None
        assert self.draft is not None
        launches_before = self._start_step(plan.step)
        self._exchange.start_step(0)
        num_blocks = max(len(plan.sequences), plan.padded_sequences)
        num_blocks = self._padded_sequences(num_blocks) or num_blocks
        plan = replace(plan, padded_sequences=num_blocks)
        with torch.inference_mode():
            inputs = build_draft_inputs(
                plan, self._geometry, config.block_size, config.noise_token_id, self.device
            )
            choices = [sequence.choice for sequence in plan.sequences]
            proposal = self.draft.propose(inputs, self.state, choices)
            self.last_proposal = proposal
        self._check_collectives(config.num_stages, 1 + config.block_size)
        num_drafts = len(plan.sequences)
        return DraftOutput(
            tuple(tuple(row) for row in proposal.token_ids[:num_drafts].tolist()),
            tuple(tuple(row) for row in proposal.confidence[:num_drafts].tolist()),
            self._counters(launches_before),
            proposal.distributions,
        )

    def _padded_sequences(self, num_sequences: int) -> int:
        """Sequences that regions are compiled for; 0 where they run op by op."""
        return self._limits.padded_sequences(num_sequences) if self._graphs else 0

    def _start_step(self, step: int) -> int:
        """Forget the counts of the step before; returns the launches so far."""
        self.group.start_step(step)
        self.experts.start_step(step)
        self._device.start_step()
        return self.ops.num_launches

    def _collectives(self) -> Counter[str]:
        """Collectives of this step by label, of both groups."""
        if self.experts is self.group:
            return self.group.counts
        return self.group.counts + self.experts.counts

    def _counters(self, launches_before: int) -> dict[str, float]:
        fallbacks = self._device.finish_step()
        counters = {
            "collectives": float(self._collectives().total()),
            "launches": float(self.ops.num_launches - launches_before),
            "collectives_per_layer": float(self.layout.collectives_per_layer),
        }
        if self._graphs:
            counters.update(self._graph_counters())
        if self._moe_capacity:
            counters["moe_overflows"] = float(self._exchange.num_overflows)
            counters["moe_dense_reruns"] = float(self._exchange.num_reruns)
        if self.device.type != "cpu":
            counters["fallbacks"] = float(sum(fallbacks.values()))
            counters.update({f"fallback {op}": float(n) for op, n in sorted(fallbacks.items())})
        return counters

    def _graph_counters(self) -> dict[str, float]:
        """Regions and compilations of this step; every kind has one graph a bucket."""
        counters = {"regions": 0.0, "compile_events": 0.0}
        for graphs in self._graphs:
            graphs.check()
            regions, compiled = graphs.take_counts()
            counters["regions"] += regions
            counters["compile_events"] += compiled
        counters["graphs"] = float(self.num_graphs)
        return counters

    def _sample(self, x: torch.Tensor, inputs: StepInputs, plan: StepPlan) -> StepOutput:
        """Ids of the logits rows, and of the rows themselves what the plan wants."""
        if not inputs.logits_rows.numel():
            return StepOutput(())
        rows = x[inputs.logits_rows]
        local = self.model.local_logits(rows)
        if plan.want_logits:
            return self._sample_rows(self.model.all_logits(local), plan)
        if self.group.rank:
            # The first rank of the batch samples; this one only gives its share.
            self._sampler.contribute(local, rows, plan.num_top)
            return StepOutput(())
        ids, is_finite, strays = self._sampler.from_shards(local, rows)
        top = self._sampler.top_of_shards(local, plan.num_top) if plan.num_top else None
        return StepOutput(ids, is_finite=is_finite, top=self._on_host(top), strays=strays)

    def _sample_rows(self, logits: torch.Tensor, plan: StepPlan) -> StepOutput:
        """From full logits [N, V], on every rank; the first gives them too."""
        ids = self._sampler.from_logits(logits)
        if self.group.rank:
            return StepOutput(ids)
        top = self._sampler.top_of_logits(logits, plan.num_top) if plan.num_top else None
        rows = logits.cpu().numpy()
        is_finite = tuple(np.isfinite(rows).all(axis=1).tolist())
        return StepOutput(ids, rows, is_finite=is_finite, top=self._on_host(top))

    def _on_host(
        self, top: Top | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]] | None:
        """The best tokens as arrays."""
        if top is None:
            return None
        ids, values = top
        return ids.cpu().numpy(), values.cpu().numpy()

    def _blocks_excluded(self, step: StepContext) -> tuple[float, ...]:
        """Measured on the published mask, not computed from the configuration."""
        source = self.config.index.candidate_source
        mask, rows = step.selection.candidates, step.inputs.logits_rows
        if source is None or mask is None or not rows.numel() or self.group.rank:
            return ()
        size = self.config.index.candidate_block_size
        visible = step.ratio(self.config.ratios[source]).num_visible[rows]
        num_blocks = -(-mask.shape[1] // size)
        padded = torch.nn.functional.pad(mask[rows], (0, num_blocks * size - mask.shape[1]))
        kept = padded.view(len(rows), num_blocks, size).any(-1).sum(-1)
        reachable = (visible + size - 1) // size
        share = 1 - kept.cpu().double() / reachable.cpu().clamp(min=1)
        return tuple(share.tolist())

    def _check_collectives(self, num_layers: int, num_vocabulary: int) -> None:
        """Layers make their fixed number; the vocabulary's are due where it is sharded.

        Under a capacity a layer makes one more to decide about overflow, and its experts'
        again where they are run again.
        """
        expected = self.layout.collectives_per_layer * num_layers
        expected += self._exchange.num_extra_collectives
        if self.layout.vocab_span(self.config.vocab_size) is not None:
            expected += num_vocabulary
        found = self._collectives()
        if found.total() != expected:
            detail = ", ".join(f"{label}×{n}" for label, n in found.items())
            raise RankError(
                self.experts.rank,
                f"made {found.total()} collectives in a step, {expected} are due",
                detail,
            )


def _num_gathers(plan: StepPlan, inputs: StepInputs) -> int:
    """Collectives over a sharded vocabulary: of the argmax or the logits, and of a top-k."""
    if not inputs.logits_rows.numel():
        return 0
    return 1 + (plan.num_top > 0 and not plan.want_logits)


def _require_capturable(table: OpTable, device: torch.device) -> None:
    """On the CPU a kernel runs in an interpreter, which reads values: no graph can hold it."""
    kernels = sorted(name for name, one in table.source.items() if one.startswith("kernels."))
    if kernels and device.type == "cpu":
        raise UsageError(
            f"compiled regions cannot hold kernels on the CPU ({', '.join(kernels)}): use the "
            "reference ops or --enforce-eager"
        )
