"""Which part of each weight a rank holds (model.md §4.5, §9).

Attention heads must divide. What else does not divide is whole on one rank, which counts it;
the indexer, the router, norms, mHC and caches are replicated.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.model import ModelConfig
from harness.core.errors import UsageError
from harness.core.numerics import Numerics

__all__ = ["HeadLayout", "RankLayout", "divisors"]

_TILE = 32
Span = tuple[int, int]


def divisors(number: int) -> list[int]:
    """All positive divisors, ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """One rank's share of heads and of the output projection.

    Attributes:
        heads: head range.
        groups: wo_a groups those heads touch.
        head_columns: columns of wo_a (of one group) that belong to this rank, None for all.
        pad_before, pad_after: zero heads that complete the touched groups; both 0 unless heads
            of a rank straddle a group border.
        exchanges_groups: partial group outputs are summed over ranks before they are rounded.
        output_columns: columns of wo_b this rank multiplies; empty where it has none.
    """

    heads: Span
    groups: Span
    head_columns: Span | None
    pad_before: int
    pad_after: int
    exchanges_groups: bool
    output_columns: Span

    @property
    def num_heads(self) -> int:
        """Heads of this rank."""
        return self.heads[1] - self.heads[0]

    @property
    def num_groups(self) -> int:
        """Groups this rank touches."""
        return self.groups[1] - self.groups[0]


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The partition of one model, seen from `rank` of the `size` ranks that share a batch.

    With several batches, routed experts are divided over the ranks of all of them; everything
    else is divided within a batch, and a batch has a copy of its own.

    Attributes:
        batch, num_batches: which group of `size` ranks this one is of.

    Raises:
        UsageError: the ranks do not divide the attention heads; the divisors are named.
    """

    config: ModelConfig
    numerics: Numerics
    rank: int = 0
    size: int = 1
    batch: int = 0
    num_batches: int = 1

    def __post_init__(self) -> None:
        if self.config.num_heads % self.size:
            choices = ", ".join(map(str, divisors(self.config.num_heads)))
            raise UsageError(
                f"cp={self.size} does not divide num_attention_heads={self.config.num_heads}: "
                f"choose one of {choices}"
            )

    @property
    def rounds_partial_sums(self) -> bool:
        """True where a sum over ranks must be complete before its one rounding."""
        return self.numerics.activation == "bfloat16" and self.numerics.accumulate == "float64"

    @property
    def collectives_per_layer(self) -> int:
        """Attention output, MoE output; one more for the group exchange (model.md §9).

        With several batches the experts take two: rows out, sums back (port.md R14, R15).
        """
        attention = 0 if self.size == 1 else 2 if self.head_layout.exchanges_groups else 1
        if self.num_batches > 1:
            return attention + 2
        return attention + (self.size > 1)

    @property
    def num_expert_ranks(self) -> int:
        """Ranks that the routed experts are divided over."""
        return self.size * self.num_batches

    @property
    def expert_rank(self) -> int:
        """This rank's number among them."""
        return self.batch * self.size + self.rank

    @property
    def head_layout(self) -> HeadLayout:
        """This rank's heads and its share of the output projection."""
        config = self.config
        per_rank, per_group = config.num_heads // self.size, config.heads_per_group
        heads = (self.rank * per_rank, (self.rank + 1) * per_rank)
        groups = (heads[0] // per_group, -(-heads[1] // per_group))
        whole = per_rank % per_group == 0
        inside = per_group % per_rank == 0
        before = heads[0] - groups[0] * per_group
        columns = (before * config.head_dim, (before + per_rank) * config.head_dim)
        exchanges = not whole and self.rounds_partial_sums
        return HeadLayout(
            heads=heads,
            groups=groups,
            head_columns=columns if inside and not whole else None,
            pad_before=0 if inside else before,
            pad_after=0 if inside else groups[1] * per_group - heads[1],
            exchanges_groups=exchanges,
            output_columns=self._output_columns(groups, exchanges=exchanges),
        )

    def _output_columns(self, groups: Span, *, exchanges: bool) -> Span:
        rank_width = self.config.o_lora_rank
        if not exchanges:
            return (groups[0] * rank_width, groups[1] * rank_width)
        num_tiles = self.config.o_groups * rank_width // _TILE
        first, last = (num_tiles * at // self.size for at in (self.rank, self.rank + 1))
        return (first * _TILE, last * _TILE)

    def output_groups(self) -> Span:
        """Groups whose complete output this rank needs for its columns of wo_b."""
        first, last = self.head_layout.output_columns
        width = self.config.o_lora_rank
        return (first // width, -(-last // width))

    def ranks_of_group(self, group: int) -> range:
        """Ranks whose heads touch a wo_a group."""
        per_rank, per_group = self.config.num_heads // self.size, self.config.heads_per_group
        first, last = group * per_group, (group + 1) * per_group
        return range(first // per_rank, -(-last // per_rank))

    def vocab_span(self, vocab_size: int) -> Span | None:
        """Vocabulary rows of this rank; None where they do not divide and are replicated."""
        if self.size == 1 or vocab_size % self.size:
            return None
        share = vocab_size // self.size
        return (self.rank * share, (self.rank + 1) * share)

    def expert_span(self, num_experts: int, layer_index: int) -> Span:
        """Experts of this rank; what does not divide is whole on one rank, dealt by layer."""
        num_ranks, rank = self.num_expert_ranks, self.expert_rank
        if num_experts % num_ranks == 0:
            share = num_experts // num_ranks
            return (rank * share, (rank + 1) * share)
        return (0, num_experts) if layer_index % num_ranks == rank else (0, 0)

    def owns_layer(self, layer_index: int) -> bool:
        """Whether this rank has what is whole on one rank of a batch; layers are dealt in turn."""
        return layer_index % self.size == self.rank

    @property
    def shared_width(self) -> Span | None:
        """Channels of the shared expert of this rank; None where one rank has it whole."""
        width = self.config.expert_width
        if (width // _TILE) % self.size:
            return None
        share = width // self.size
        return (self.rank * share, (self.rank + 1) * share)
