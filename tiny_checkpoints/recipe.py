"""Which numbers fill which parameter (model.md §6, Generator recipe).

Activations stay of order 1: a linear weight has variance gain² / K. Two additions make the
checkpoint useful for verdicts on tokens:

* Scales differ from block to block. Each 32×32 tile (experts: each 32 values of a row) is drawn
  half, once or twice as loud, so a kernel that reads the neighbour's scale is wrong by a factor.
* Greedy tokens have margins and still hang on the whole model. Tokens form clusters of two. An
  embedding points, by a sign vector in the first three quarters of its channels, at the cluster
  that follows, and a head row holds its own cluster's vector, so two candidates compete. Between
  them decides the last quarter, which embeddings leave almost empty: it holds what attention,
  experts and Engram wrote. (An ordinary random model of this size is chaotic: measured, with
  branch gains of 1 the orders of fp32 sums alone change most of its tokens.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tiny_checkpoints.inventory import Unit
from tiny_checkpoints.raw_bits import near_normals, permutation, raw_words, signs, uniforms
from tiny_checkpoints.variants import Variant

__all__ = ["CLUSTER_SIZE", "ParameterSource"]

CLUSTER_SIZE = 2
_TILE = 32
# A block is half, once, once or twice as loud; 1.25² is the mean square of the four.
_LOUDNESS = np.array([0.5, 1.0, 1.0, 2.0]) / 1.25
_ENGRAM_SCALE_EXPONENT = -4

Reals = npt.NDArray[np.float64]


class ParameterSource:
    """Draws the parameters of one variant; each depends on its name and the seed alone.

    Args:
        variant: gains, seed and dimensions.
    """

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        gains = variant.gains
        # First suffix that matches wins. Linear weights take a gain, the rest a function.
        self._linear_gains: tuple[tuple[str, float], ...] = (
            ("attn.indexer.wq_b", 1.0),
            ("attn.wq_b", gains.query),
            ("attn.wo_a", 1.5),
            ("attn.wo_b", 1.5 * gains.branch),
            # The shared expert's hidden values reach the SwiGLU limit of 10 now and then.
            ("shared_experts.w1", 4.0),
            ("shared_experts.w3", 4.0),
            ("shared_experts.w2", 0.15 * gains.branch),
            (".w2", 1.5 * gains.branch),
            ("compressor.wgate.weight", 3.0),
            ("engram.wkv", 2.0 * gains.branch),
            ("ffn.gate.weight", gains.router),
        )
        self._special: tuple[tuple[str, Callable[[Unit], Reals]], ...] = (
            ("compressor.norm.weight", lambda unit: self._near_one(unit) * gains.compressed),
            ("norm.weight", self._near_one),
            ("engram.q_weight", self._near_one),
            ("engram.k_weight", self._near_one),
            ("attn_sink", lambda unit: self._normals(unit, 0.5)),
            ("gate.bias", lambda unit: self._normals(unit, 0.01)),
            ("gate.bias_vl", lambda unit: self._normals(unit, 0.01)),
            ("_fn", lambda unit: self._normals(unit, 0.03)),
            ("_base", self._hc_base),
            ("_scale", lambda unit: 1.0 + 0.25 * uniforms(self._stream(unit), unit.shape)),
            ("markov_head.embed.weight", lambda unit: self._codebook(unit, "markov", True, 0.7)),
            ("markov_head.head.weight", lambda unit: self._codebook(unit, "markov", False, 0.3)),
            ("embed.weight", lambda unit: self._embedding(unit)),
            ("head.weight", lambda unit: self._head(unit)),
        )

    def values(self, unit: Unit) -> Reals:
        """The parameter in fp64, before it is rounded to its stored form."""
        for suffix, draw in self._special:
            if unit.name.endswith(suffix):
                return draw(unit)
        gain = next((g for suffix, g in self._linear_gains if unit.name.endswith(suffix)), 1.0)
        return self._linear(unit, gain)

    def table_exponents(self, unit: Unit) -> npt.NDArray[np.int32]:
        """Scale exponents [rows, W/32] of an Engram table: -5, -4, -4 or -3."""
        rows, width = unit.shape
        words = raw_words(f"{self._stream(unit)}/scales", rows * (width // _TILE))
        step = np.array([-1, 0, 0, 1], dtype=np.int32)[(words >> np.uint64(62)).astype(np.int64)]
        return (_ENGRAM_SCALE_EXPONENT + step).reshape(rows, width // _TILE)

    def _stream(self, unit: Unit) -> str:
        return f"{self._variant.seed}/{unit.name}"

    def _normals(self, unit: Unit, sigma: float) -> Reals:
        return near_normals(self._stream(unit), unit.shape) * sigma

    def _near_one(self, unit: Unit) -> Reals:
        return 1.0 + 0.1 * uniforms(self._stream(unit), unit.shape)

    def _linear(self, unit: Unit, gain: float) -> Reals:
        values = self._normals(unit, gain / math.sqrt(unit.shape[-1]))
        if unit.form in ("fp8", "fp4"):
            values *= self._loudness(unit)
        elif unit.form == "fp8_rows":
            values *= math.sqrt(unit.shape[-1])
        return values

    def _loudness(self, unit: Unit) -> Reals:
        rows, columns = unit.shape
        tile_rows = 1 if unit.form == "fp4" else _TILE
        grid = (rows // tile_rows, columns // _TILE)
        words = raw_words(f"{self._stream(unit)}/loudness", grid[0] * grid[1])
        factors = _LOUDNESS[(words >> np.uint64(62)).astype(np.int64)].reshape(grid)
        return np.repeat(np.repeat(factors, tile_rows, axis=0), _TILE, axis=1)

    def _hc_base(self, unit: Unit) -> Reals:
        """Normals of 1, so that streams grow apart, and a diagonal preference for the mixing."""
        values = self._normals(unit, 1.0)
        num_streams = math.isqrt(unit.shape[0] + 1) - 1
        values[2 * num_streams :: num_streams + 1] += 1.0
        return values

    def _embedding(self, unit: Unit) -> Reals:
        gains = self._variant.gains
        values = self._normals(unit, 1.0) + self._codebook(unit, "model", True, gains.cluster)
        values[:, _tail(unit)] = self._normals(unit, gains.tail)[:, _tail(unit)]
        return values

    def _head(self, unit: Unit) -> Reals:
        """Cluster term about ±10 logits apart; about 1 logit, by the tail, within a cluster."""
        num_channels = unit.shape[-1]
        values = self._codebook(unit, "model", False, 0.75 / math.sqrt(num_channels))
        tail = self._normals(unit, self._variant.gains.tail_head / math.sqrt(num_channels))
        values[:, _tail(unit)] = tail[:, _tail(unit)]
        return values

    def _codebook(self, unit: Unit, book: str, successor: bool, amplitude: float) -> Reals:
        """Row t: amplitude times the sign vector of t's own or t's successor cluster."""
        num_tokens, width = unit.shape
        num_clusters = num_tokens // CLUSTER_SIZE
        seed = self._variant.seed
        vectors = signs(f"{seed}/codebook/{book}", (num_clusters, width))
        own = permutation(f"{seed}/clusters", num_tokens) % num_clusters
        cluster = permutation(f"{seed}/successors", num_tokens) % num_clusters
        return vectors[cluster if successor else own] * amplitude


def _tail(unit: Unit) -> slice:
    """The channels that decide within a cluster: the last quarter."""
    return slice(unit.shape[-1] - unit.shape[-1] // 4, None)
