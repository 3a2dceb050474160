"""The DSpark draft model (model.md §2.10): absorbs taps, proposes a block of tokens.

Legend: T rows, S sequences, k block size, V vocabulary of this rank, d hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cache.state import CacheState
from engine.cache.step_inputs import StepInputs
from engine.graphs.region_graphs import RegionGraphs
from engine.model.base import Runtime
from engine.model.block import Block
from engine.model.compiled_stack import CompiledStack
from engine.model.draft_draws import DraftDraws
from engine.model.moe import ExpertShape
from engine.model.transformer import Transformer
from engine.sampler import Greedy
from engine.schedule.choice import DraftChoice
from engine.schedule.distribution import Distribution
from engine.weights.load import draft_role
from engine.weights.tensors import DraftWeights
from harness.core.weights import QuantisedWeight

__all__ = ["Draft", "Proposal"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts of S sequences, greedy or drawn.

    Attributes:
        token_ids: [S, k]; column i is for position p + 2 + i.
        logits: [S, k, V of this rank], Markov-biased.
        confidence: [S, k] raw logits of the acceptance of each draft.
        distributions: by sequence, what each draft was drawn from; () for greedy sequences.
    """

    token_ids: torch.Tensor
    logits: torch.Tensor
    confidence: torch.Tensor
    distributions: tuple[tuple[Distribution, ...], ...] = ()


class Draft:
    """Draft stages over the target's embedding and head."""

    def __init__(
        self, runtime: Runtime, weights: DraftWeights, target: Transformer, sampler: Greedy
    ) -> None:
        config = runtime.config
        assert config.draft is not None
        self._runtime = runtime
        self._weights = weights
        self._target = target
        self._sampler = sampler
        self._block_size = config.draft.block_size
        experts = ExpertShape(config.draft.num_experts, config.draft.top_k)
        self._stage_ids = [config.num_layers + stage for stage in range(config.draft.num_stages)]
        self._blocks = [
            Block(runtime, draft_role(config, stage), experts, block)
            for stage, block in enumerate(weights.blocks)
        ]
        self._experts = experts
        self._compiled: CompiledStack | None = None
        self._wkv = [_wkv_of(block.attention.wq_a_wkv, config.q_lora_rank)
                     for block in weights.blocks]  # fmt: skip

    def compile_regions(self, graphs: RegionGraphs) -> None:
        """Run the stages' regions as graphs from now on."""
        self._compiled = CompiledStack(self._runtime, self._experts, self._blocks, graphs)

    def absorb(self, taps: list[torch.Tensor], inputs: StepInputs, state: CacheState) -> None:
        """Write every stage's window entries for a step's rows; taps are [T, d] by tap layer.

        Rows that are rolled back are absorbed too: no row sees them before they are overwritten.
        """
        runtime, ops, eps = self._runtime, self._runtime.ops, self._runtime.config.norm_eps
        main = ops.linear_fp8(torch.cat(taps, dim=1), self._weights.main_proj, "activation")
        main = ops.rms_norm(main, self._weights.main_norm, eps)
        rotation = self._target.rope.at("main", inputs.positions)
        for stage_id, wkv, block in zip(
            self._stage_ids, self._wkv, self._weights.blocks, strict=True
        ):
            kv = ops.linear_fp8(main, wkv, "activation")
            kv = ops.rms_norm(kv, block.attention.kv_norm, eps)
            kv = runtime.on_fp8_grid(ops.rope(kv, rotation.cos, rotation.sin))
            state.rings[stage_id][inputs.ring_targets] = kv[inputs.ring_sources]

    def propose(
        self,
        inputs: StepInputs,
        state: CacheState,
        choices: Sequence[DraftChoice | None] = (),
    ) -> Proposal:
        """k drafts for each of S sequences; inputs of engine.cache.draft_inputs.

        Args:
            choices: how each sequence's drafts are drawn; None, or none given: greedily.
        """
        step = self._target.context(inputs, state)
        if self._compiled is not None:
            self._compiled.enter_bucket(inputs)
        residual = self._target.first_streams(inputs.token_ids)
        for block in self._blocks:
            residual = block.run(residual, step)
        x = self._target.collapsed(residual)
        base = self._target.local_logits(x, self._weights.norm)
        first = inputs.token_ids.view(-1, self._block_size)[:, 0]
        return self._markov_chain(x, base, first, DraftDraws(self._target, self._sampler, choices))

    def _markov_chain(
        self, x: torch.Tensor, base: torch.Tensor, first: torch.Tensor, draws: DraftDraws
    ) -> Proposal:
        """Each draft biases the next: k sequential choices, one collective each if sharded."""
        ops, weights = self._runtime.ops, self._weights
        x_Skd = x.view(-1, self._block_size, x.shape[1])
        base_SkV = base.view(-1, self._block_size, base.shape[1])
        token, drafts, logits, confidence = first, [], [], []
        for place in range(self._block_size):
            e = weights.markov_embed[token].to(self._runtime.activation)
            bias = ops.linear_bf16(e, weights.markov_head, "accumulate")
            biased = base_SkV[:, place] + bias
            pair = torch.cat([x_Skd[:, place], e], dim=1)
            confidence.append(ops.linear_bf16(pair, weights.confidence, "accumulate"))
            token = draws.pick(biased, place)
            drafts.append(token)
            logits.append(biased)
        return Proposal(
            torch.stack(drafts, dim=1),
            torch.stack(logits, dim=1),
            torch.cat(confidence, dim=1),
            tuple(map(tuple, draws.distributions)),
        )


def _wkv_of(joined: QuantisedWeight, q_lora_rank: int) -> QuantisedWeight:
    """The wkv rows of the joined weight; q_lora_rank is a multiple of the 32-row tile."""
    return QuantisedWeight(
        joined.codes[q_lora_rank:], joined.scale[q_lora_rank // 32 :], "fp8_block"
    )
