"""Which part of each weight a rank holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.model import ModelConfig
from engine.config.parse import load_model_config
from engine.weights.layout import RankLayout
from harness.core.errors import UsageError
from harness.core.numerics import EXACT, FAST, QUANTISED
from tests.engine.oracle import directory


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    """12 heads in 4 groups of 3, 12 experts, width 192 (6 tiles), vocabulary 512."""
    base = load_model_config(directory("steady_mtp"))
    return replace(base, num_heads=12, o_groups=4, num_experts=12, expert_width=192)


def _all(config: ModelConfig, size: int, numerics: object = QUANTISED) -> list[RankLayout]:
    return [RankLayout(config, numerics, rank, size) for rank in range(size)]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
def test_heads_experts_and_columns_are_covered_once(config: ModelConfig, size: int) -> None:
    layouts = _all(config, size)
    heads = [head for one in layouts for head in range(*one.head_layout.heads)]
    assert heads == list(range(12))
    experts = [expert for one in layouts for expert in range(*one.expert_span(12, 0))]
    assert experts == list(range(12))
    columns = [column for one in layouts for column in range(*one.head_layout.output_columns)]
    assert columns == list(range(4 * 64))


def test_a_size_that_does_not_divide_the_heads_names_the_divisors(config: ModelConfig) -> None:
    with pytest.raises(
        UsageError, match=r"cp=5 does not divide .*=12: choose one of 1, 2, 3, 4, 6"
    ):
        RankLayout(config, EXACT, 0, 5)


def test_collectives_per_layer_follow_groups_and_rounding(config: ModelConfig) -> None:
    per_layer = {
        (mode.name, size): RankLayout(config, mode, 0, size).collectives_per_layer
        for mode in (EXACT, QUANTISED, FAST)
        for size in (1, 2, 4, 12)
    }
    assert [per_layer["exact", size] for size in (1, 2, 4, 12)] == [0, 2, 2, 2]
    assert [per_layer["quantised", size] for size in (1, 2, 4, 12)] == [0, 2, 2, 3]
    assert [per_layer["fast", size] for size in (1, 2, 4, 12)] == [0, 2, 2, 2]


def test_batches_of_their_own_share_the_experts_and_nothing_else(config: ModelConfig) -> None:
    layouts = [RankLayout(config, EXACT, rank % 2, 2, rank // 2, 3) for rank in range(6)]
    experts = [expert for one in layouts for expert in range(*one.expert_span(12, 0))]
    assert experts == list(range(12))
    assert [one.expert_rank for one in layouts] == list(range(6))
    for batch in range(3):
        first, second = layouts[2 * batch : 2 * batch + 2]
        assert (first.head_layout.heads, second.head_layout.heads) == ((0, 6), (6, 12))
        assert (first.shared_width, second.shared_width) == ((0, 96), (96, 192))
        assert (first.vocab_span(512), second.vocab_span(512)) == ((0, 256), (256, 512))


def test_batches_of_their_own_take_two_collectives_for_the_experts(config: ModelConfig) -> None:
    per_layer = {
        (mode.name, size): RankLayout(config, mode, 0, size, 0, 2).collectives_per_layer
        for mode in (EXACT, QUANTISED)
        for size in (1, 2, 12)
    }
    # Packed gather and scatter; with several ranks a batch the sum after attention, and in
    # quantised with more ranks than groups that of the groups.
    assert [per_layer["exact", size] for size in (1, 2, 12)] == [2, 3, 3]
    assert [per_layer["quantised", size] for size in (1, 2, 12)] == [2, 3, 4]


def test_experts_that_do_not_divide_over_batches_are_dealt_by_layer(config: ModelConfig) -> None:
    odd = replace(config, num_experts=10, expert_width=160)
    layouts = [RankLayout(odd, EXACT, rank % 2, 2, rank // 2, 2) for rank in range(4)]
    assert [one.expert_span(10, 6) for one in layouts] == [(0, 0), (0, 0), (0, 10), (0, 0)]
    # The shared expert is whole on one rank of each batch.
    assert [one.owns_layer(7) for one in layouts] == [False, True, False, True]


def test_heads_that_straddle_groups_are_completed_with_zero_heads(config: ModelConfig) -> None:
    # 6 ranks of 2 heads over groups of 3: rank 1 has heads 2 and 3 of groups 0 and 1.
    layout = RankLayout(config, EXACT, 1, 6).head_layout
    assert (layout.groups, layout.pad_before, layout.pad_after) == ((0, 2), 2, 2)
    assert layout.head_columns is None


def test_part_of_a_group_reads_only_its_columns(config: ModelConfig) -> None:
    layout = RankLayout(config, QUANTISED, 4, 12).head_layout
    assert (layout.groups, layout.head_columns) == ((1, 2), (64, 128))
    assert RankLayout(config, QUANTISED, 4, 12).ranks_of_group(1) == range(3, 6)


def test_what_does_not_divide_is_whole_on_one_rank(config: ModelConfig) -> None:
    odd = replace(config, num_experts=10, expert_width=160)
    layouts = _all(odd, 4)
    assert [one.expert_span(10, 6) for one in layouts] == [(0, 0), (0, 0), (0, 10), (0, 0)]
    assert [one.shared_width for one in layouts] == [None] * 4
    assert [one.owns_layer(6) for one in layouts] == [False, False, True, False]
    assert RankLayout(config, EXACT, 1, 2).shared_width == (96, 192)


def test_the_vocabulary_is_sharded_where_it_divides(config: ModelConfig) -> None:
    assert RankLayout(config, EXACT, 1, 2).vocab_span(512) == (256, 512)
    assert RankLayout(config, EXACT, 1, 3).vocab_span(512) is None
