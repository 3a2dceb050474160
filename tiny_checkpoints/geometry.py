"""The dimensions of a checkpoint, read from its configuration and checked against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from tiny_checkpoints.engram_rows import engram_primes, engram_table_rows

__all__ = ["Geometry"]

_TILE = 32
_TILED = (
    "hidden_size",
    "q_lora_rank",
    "head_dim",
    "o_lora_rank",
    "moe_intermediate_size",
    "index_head_dim",
    "engram_head_dim",
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What tensor names and shapes depend on; fields are the keys of `text_config`.

    `compress_ratios` may cover the backbone alone or backbone and draft stages.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_nextn_predict_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    dspark_noise_token_id: int
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    dspark_target_layer_ids: tuple[int, ...]

    @classmethod
    def from_config(cls, text_config: Mapping[str, Any], file: Path | str) -> Geometry:
        """Read the fields this class needs; other keys are the engine's business.

        Raises:
            InputError: a key is missing, of the wrong type, or inconsistent with others.
        """
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            if item.name not in text_config:
                raise InputError(file, f"text_config.{item.name}", "absent", "add the key")
            value = text_config[item.name]
            is_list = item.type != "int"
            if is_list and isinstance(value, (list, tuple)) and all(map(_is_int, value)):
                values[item.name] = tuple(value)
            elif not is_list and _is_int(value):
                values[item.name] = value
            else:
                kind = "a list of integers" if is_list else "an integer"
                raise InputError(file, f"text_config.{item.name}", value, f"must be {kind}")
        geometry = cls(**values)
        geometry._check(file)
        return geometry

    @property
    def num_hc_coefficients(self) -> int:
        """(2 + m) m."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def engram_columns(self) -> int:
        """Table rows concatenated per token: (N - 1) orders times heads."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def ratio(self, layer: int) -> int:
        """Compression ratio of the cache a backbone layer reads."""
        return self.compress_ratios[layer]

    def _check(self, file: Path | str) -> None:
        for name, holds, remedy in self._constraints():
            if not holds:
                raise InputError(file, f"text_config.{name}", getattr(self, name), remedy)

    def _constraints(self) -> list[tuple[str, bool, str]]:
        """The constraints of model.md §6 and §1.2 as (field, holds, remedy)."""
        tiled = [(name, getattr(self, name) % _TILE == 0, "a multiple of 32") for name in _TILED]
        return [*tiled, *self._layer_constraints(), *self._size_constraints()]

    def _layer_constraints(self) -> list[tuple[str, bool, str]]:
        layers, draft = self.num_hidden_layers, self.num_nextn_predict_layers
        primes = engram_primes(
            len(self.engram_layer_ids),
            self.engram_max_ngram_size,
            self.engram_n_heads,
            self.engram_vocab_size,
        )
        rows = tuple(engram_table_rows(primes))
        return [
            (
                "compress_ratios",
                len(self.compress_ratios) in (layers, layers + draft)
                and set(self.compress_ratios) <= {0, 1, 2},
                f"{layers} or {layers + draft} ratios out of 0, 1, 2",
            ),
            (
                "kv_source_layer_ids",
                set(self.kv_source_layer_ids) <= set(self.index_source_layer_ids),
                "every kv source is an index source",
            ),
            (
                "engram_num_embeddings",
                self.engram_num_embeddings == rows,
                f"the sums of the layers' primes: {list(rows)}",
            ),
        ]

    def _size_constraints(self) -> list[tuple[str, bool, str]]:
        reach = self.candidate_topk_blocks * self.candidate_block_size
        return [
            (
                "num_attention_heads",
                self.num_attention_heads % self.o_groups == 0,
                f"a multiple of o_groups ({self.o_groups})",
            ),
            (
                "qk_rope_head_dim",
                self.qk_rope_head_dim % 2 == 0
                and self.qk_rope_head_dim <= min(self.head_dim, self.index_head_dim),
                "even, at most head_dim and index_head_dim",
            ),
            (
                "index_topk",
                reach - (self.candidate_block_size - 1) >= self.index_topk,
                "candidate_topk_blocks x size - (size - 1) must reach index_topk",
            ),
            (
                "num_experts_per_tok",
                self.num_experts_per_tok <= self.n_routed_experts,
                "at most n_routed_experts",
            ),
            (
                "dspark_num_experts_per_tok",
                self.dspark_num_experts_per_tok <= self.dspark_n_routed_experts,
                "at most dspark_n_routed_experts",
            ),
            (
                "dspark_noise_token_id",
                0 <= self.dspark_noise_token_id < self.vocab_size,
                "an id of the vocabulary",
            ),
        ]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
