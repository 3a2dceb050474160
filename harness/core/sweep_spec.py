"""A TTFT/TPOT matrix before it is run: its axes, and the points they make."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    "device",
    "allowed_fallbacks",
    "speculative",
    "confidence_threshold",
    "enforce_eager",
    "compile_backend",
    "moe_capacity",
)
# Fields younger than the first records: where they say nothing, keys stay what they were.
_YOUNG_FIELDS = ("prefill", "enforce_eager", "compile_backend", "moe_capacity")


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
        concurrency: requests in flight.
        request_rate: arrivals per second; 0 is a closed loop.
        num_prompts: requests of one repeat.
    """

    key: str
    config: Mapping[str, Any]
    settings: EngineSettings
    input_len: int
    output_len: int
    pruned: str = ""
    concurrency: int = 1
    request_rate: float = 0.0
    num_prompts: int = 1


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
        output_lens, concurrencies: axes in place of output_len and concurrency; empty takes these.
        bucket_sets: axis of context buckets; empty takes those of `engine`.
        prefills: axis of prefill paths ("as-decode", "attention"); empty: as-decode.
        request_rates: arrivals per second, online only; 0 is a closed loop.
        arrival: "poisson" or "constant", of rates above 0.
        num_prompts: requests of one repeat, online only; 0 takes the concurrency.
        interval_goal: half width of the 95 % interval of the median over the median, of TTFT and
            TPOT, at which a point has enough repeats; 0 stops at num_repeats.
        max_repeats: repeats of a point whatever its interval.
        budget_s: time of one engine's points after which no further repeat is added; 0 is none.
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
    output_lens: tuple[int, ...] = ()
    concurrencies: tuple[int, ...] = ()
    bucket_sets: tuple[tuple[int, ...], ...] = ()
    prefills: tuple[str, ...] = ()
    request_rates: tuple[float, ...] = (0.0,)
    arrival: str = "poisson"
    num_prompts: int = 0
    interval_goal: float = 0.0
    max_repeats: int = 20
    budget_s: float = 0.0

    def __post_init__(self) -> None:
        self._check_axes()
        self._check_counts()
        unknown = sorted(set(self.engine) - set(_ENGINE_FIELDS))
        if unknown:
            raise UsageError(
                f"sweep {self.name!r}: engine field {unknown[0]!r} is not one of "
                f"{', '.join(_ENGINE_FIELDS)}"
            )
        if self.bucket_sets and "context_buckets" in self.engine:
            raise UsageError(
                f"sweep {self.name!r}: bucket_sets and engine.context_buckets exclude each other"
            )

    @property
    def all_output_lens(self) -> tuple[int, ...]:
        """The axis of output lengths."""
        return self.output_lens or (self.output_len,)

    @property
    def all_concurrencies(self) -> tuple[int, ...]:
        """The axis of requests in flight."""
        return self.concurrencies or (self.concurrency,)

    def _check_axes(self) -> None:
        axes = ("input_lens", "cps", "eps", "numerics", "ops", "request_rates")
        may_be_empty = ("output_lens", "concurrencies", "bucket_sets", "prefills")
        for axis in (*axes, *may_be_empty):
            values = getattr(self, axis)
            if not values and axis not in may_be_empty:
                raise UsageError(f"sweep {self.name!r}: {axis} is empty")
            if len(set(values)) != len(values):
                raise UsageError(f"sweep {self.name!r}: {axis} repeats a value: {list(values)}")

    def _check_counts(self) -> None:
        smallest = min(*self.input_lens, *self.all_output_lens, *self.all_concurrencies)
        if smallest < 1 or self.num_repeats < 1 or self.max_repeats < 1:
            raise UsageError(
                f"sweep {self.name!r}: input_lens, output_len, concurrency, num_repeats and "
                "max_repeats are at least 1"
            )
        if self.num_warmups < max(self.all_concurrencies):
            raise UsageError(
                f"sweep {self.name!r}: num_warmups={self.num_warmups} must be at least "
                f"concurrency={max(self.all_concurrencies)}, which is at least 1"
            )
        if self.arrival not in ("poisson", "constant") or min(self.request_rates) < 0:
            raise UsageError(
                f"sweep {self.name!r}: arrival={self.arrival!r} is poisson or constant, "
                "request_rates are at least 0"
            )
        if self.num_prompts < 0 or self.interval_goal < 0 or self.budget_s < 0:
            raise UsageError(
                f"sweep {self.name!r}: num_prompts, interval_goal and budget_s are at least 0"
            )

    def settings(self, checkpoint: str) -> tuple[EngineSettings, ...]:
        """One entry per engine, in running order; what means the same as an earlier one is left
        out (ep=2 with cp=2 is what ep=0 means there).

        Raises:
            UsageError: a setting that EngineSettings refuses.
        """
        buckets: tuple[dict[str, Any], ...] = tuple(
            {"context_buckets": one} for one in self.bucket_sets
        ) or ({},)
        paths: tuple[dict[str, Any], ...] = tuple({"prefill": one} for one in self.prefills) or (
            {},
        )
        every = (
            EngineSettings(
                checkpoint, cp=cp, ep=ep, numerics=mode, ops=ops, **self.engine, **path, **bucket
            )
            for path in paths
            for bucket in buckets
            for mode in self.numerics
            for ops in self.ops
            for ep in self.eps
            for cp in self.cps
        )
        unlike: dict[EngineSettings, EngineSettings] = {}
        for settings in every:
            meaning = replace(settings, ep=0) if settings.ep == settings.cp else settings
            unlike.setdefault(meaning, settings)
        return tuple(unlike.values())

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
            self._point(settings, checkpoint_id, shape, max_model_len)
            for settings in self.settings(checkpoint)
            for shape in itertools.product(
                self.all_concurrencies,
                self.request_rates,
                self.all_output_lens,
                self.input_lens,
            )
        )

    def _point(
        self,
        settings: EngineSettings,
        checkpoint_id: str,
        shape: tuple[int, float, int, int],
        default_limit: int,
    ) -> PlannedPoint:
        concurrency, rate, output_len, input_len = shape
        fields = {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}
        del fields["checkpoint"], fields["time_limit_s"]
        if settings.device == "cpu":  # keys of records from before there was a device stay valid
            del fields["device"], fields["allowed_fallbacks"]
        for item in dataclasses.fields(settings):
            if item.name in _YOUNG_FIELDS and fields[item.name] == item.default:
                del fields[item.name]
        config = {
            **fields,
            "ops": list(settings.ops),
            "context_buckets": list(settings.context_buckets),
            "checkpoint_id": checkpoint_id,
            "input_len": input_len,
            "output_len": output_len,
            "num_repeats": self.num_repeats,
            "num_warmups": self.num_warmups,
            "concurrency": concurrency,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
        }
        # Only what a point really has: keys of older records stay what they were.
        if rate:
            config |= {"request_rate": rate, "arrival": self.arrival}
        if self.num_prompts:
            config["num_prompts"] = self.num_prompts
        if self.interval_goal:
            config |= {"interval_goal": self.interval_goal, "max_repeats": self.max_repeats}
        limit = settings.max_model_len or default_limit
        total = input_len + output_len
        pruned = ""
        if limit and total > limit:
            pruned = (
                f"input {input_len} + output {output_len} = {total} tokens, "
                f"over max_model_len {limit}"
            )
        return PlannedPoint(
            point_key(config),
            config,
            settings,
            input_len,
            output_len,
            pruned,
            concurrency,
            rate,
            self.num_prompts or concurrency,
        )
