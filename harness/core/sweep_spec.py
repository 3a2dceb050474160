"""A TTFT/TPOT matrix before it is run: its axes, and the points they make."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.engine_face import REFERENCE_OPS, EngineSettings
from harness.core.errors import UsageError
from harness.core.record import strict_json

__all__ = ["PlannedPoint", "SweepSpec", "point_key"]

# What EngineSettings fields a spec may fix for all of its points; the rest are axes or the run's.
_ENGINE_FIELDS = (
    "fp8_max",
    "max_model_len",
    "max_num_batched_tokens",
    "token_bucket",
    "context_buckets",
    "page_size",
    "num_kv_blocks",
    "num_threads",
    "time_limit_s",
)


def point_key(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of the whole configuration, keys sorted."""
    return hashlib.sha256(strict_json(config).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One cell of the matrix before it ran.

    Attributes:
        key: `point_key(config)`.
        config: everything that distinguishes the point; what SweepPoint.config will hold. The
            checkpoint appears by its fingerprint, not by its path, so a moved run resumes.
        settings: the engine it runs on; points of equal settings share one engine.
        input_len, output_len: tokens.
        pruned: why it will not run; empty where it will.
    """

    key: str
    config: Mapping[str, Any]
    settings: EngineSettings
    input_len: int
    output_len: int
    pruned: str = ""


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """Axes and method of a sweep (measurement.md §3): batch 1, random prompts, greedy.

    Attributes:
        name: the file's stem.
        input_lens: prompt lengths in tokens, in running order.
        output_len: tokens generated per request.
        cps, eps, numerics, ops: setting axes; their product, in order, gives the engines. ep 0
            means the same as cp; ops entries are op-table target tuples.
        num_repeats: measured requests per point.
        num_warmups: requests of the same shape before, excluded from every statistic.
        concurrency: requests in flight.
        seed: of the prompts; each repeat and each rank adds its own.
        ignore_eos: generate exactly output_len tokens.
        engine: EngineSettings fields fixed for all points (buckets, max_model_len, ...).
        description: one line for people.
    """

    name: str
    input_lens: tuple[int, ...]
    output_len: int
    cps: tuple[int, ...] = (1,)
    eps: tuple[int, ...] = (0,)
    numerics: tuple[str, ...] = ("fast",)
    ops: tuple[tuple[str, ...], ...] = (REFERENCE_OPS,)
    num_repeats: int = 3
    num_warmups: int = 1
    concurrency: int = 1
    seed: int = 0
    ignore_eos: bool = True
    engine: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        for axis in ("input_lens", "cps", "eps", "numerics", "ops"):
            values = getattr(self, axis)
            if not values:
                raise UsageError(f"sweep {self.name!r}: {axis} is empty")
            if len(set(values)) != len(values):
                raise UsageError(f"sweep {self.name!r}: {axis} repeats a value: {list(values)}")
        if min(self.input_lens) < 1 or self.output_len < 1 or self.num_repeats < 1:
            raise UsageError(
                f"sweep {self.name!r}: input_lens, output_len and num_repeats are at least 1"
            )
        if self.num_warmups < self.concurrency or self.concurrency < 1:
            raise UsageError(
                f"sweep {self.name!r}: num_warmups={self.num_warmups} must be at least "
                f"concurrency={self.concurrency}, which is at least 1"
            )
        unknown = sorted(set(self.engine) - set(_ENGINE_FIELDS))
        if unknown:
            raise UsageError(
                f"sweep {self.name!r}: engine field {unknown[0]!r} is not one of "
                f"{', '.join(_ENGINE_FIELDS)}"
            )

    def settings(self, checkpoint: str) -> tuple[EngineSettings, ...]:
        """One entry per engine, in running order.

        Raises:
            UsageError: a setting that EngineSettings refuses.
        """
        return tuple(
            EngineSettings(checkpoint, cp=cp, ep=ep, numerics=mode, ops=ops, **self.engine)
            for mode in self.numerics
            for ops in self.ops
            for ep in self.eps
            for cp in self.cps
        )

    def points(
        self, checkpoint: str, checkpoint_id: str, max_model_len: int = 0
    ) -> tuple[PlannedPoint, ...]:
        """Every point in order: setting by setting, input lengths within.

        Args:
            checkpoint: directory.
            checkpoint_id: fingerprint of its content, part of every key.
            max_model_len: what the engine takes where the spec leaves it 0; 0 prunes nothing.
        """
        return tuple(
            self._point(settings, checkpoint_id, input_len, max_model_len)
            for settings in self.settings(checkpoint)
            for input_len in self.input_lens
        )

    def _point(
        self, settings: EngineSettings, checkpoint_id: str, input_len: int, default_limit: int
    ) -> PlannedPoint:
        fields = {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}
        del fields["checkpoint"], fields["time_limit_s"]
        config = {
            **fields,
            "ops": list(settings.ops),
            "context_buckets": list(settings.context_buckets),
            "checkpoint_id": checkpoint_id,
            "input_len": input_len,
            "output_len": self.output_len,
            "num_repeats": self.num_repeats,
            "num_warmups": self.num_warmups,
            "concurrency": self.concurrency,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
        }
        limit = settings.max_model_len or default_limit
        total = input_len + self.output_len
        pruned = ""
        if limit and total > limit:
            pruned = (
                f"input {input_len} + output {self.output_len} = {total} tokens, "
                f"over max_model_len {limit}"
            )
        return PlannedPoint(point_key(config), config, settings, input_len, self.output_len, pruned)
