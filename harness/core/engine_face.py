"""What procedures may ask of an engine, so that they can be tested with fakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from harness.core.errors import UsageError
from harness.core.numerics import numerics_named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "REFERENCE_OPS",
    "EngineFace",
    "EngineFactory",
    "EngineSettings",
    "Generation",
    "StepShape",
    "step_rows",
]

REFERENCE_OPS = ("references.op_table:TABLE",)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One way of running the model; the label is the name it has in records.

    Attributes:
        checkpoint: directory with config.json and safetensors.
        cp: ranks of the tensor-parallel group (attention heads sharded).
        ep: ranks of the expert-parallel group, a multiple of cp; 0 means the same as cp. Every cp
            ranks have a batch of their own, so that cp=1 with ep=N is data-parallel attention.
        numerics: a mode of harness.core.numerics.
        ops: op-table targets, the last laid on top.
        fp8_max: 0 takes the grid of the numerics, 240 or 448 forces one.
        max_model_len: prompt plus output tokens a request may have; 0 takes the default.
        max_num_batched_tokens: prompt rows in one step; 0 takes the token bucket.
        token_bucket, context_buckets, page_size, num_kv_blocks: 0 or () take the defaults.
        num_threads: torch threads per rank; 0 leaves torch's choice.
        time_limit_s: a rank that gives no answer for so long ends the run.
        speculative: "" decodes token by token, "dspark" drafts blocks and verifies them.
        device: "cpu", or "neuron" for NeuronCores through torch-neuronx.
        allowed_fallbacks: ops that may run on the CPU although the device is "neuron", e.g.
            ("aten::sort",); a sweep fails on any other.
        confidence_threshold: drafts are cut before the first whose acceptance probability,
            multiplied along the block, falls below it; 0 verifies whole blocks.
        prefill: "as-decode" runs prompts through decode-shaped steps of one token bucket,
            "attention" through the prefill attention path.
        enforce_eager: layers run op by op; False runs them as compiled regions.
        compile_backend: who compiles regions: "inductor", "aten" (the captured graph op by op),
            "fp8_as_uint8"; "" is the device's own (inductor on the CPU).
        moe_capacity: rows of prompt steps an expert takes in one pass; where one is given more,
            the layer's experts run again without a limit. 0 groups rows without a limit.
    """

    checkpoint: str
    cp: int = 1
    ep: int = 0
    numerics: str = "fast"
    ops: tuple[str, ...] = REFERENCE_OPS
    fp8_max: int = 0
    max_model_len: int = 0
    max_num_batched_tokens: int = 0
    token_bucket: int = 0
    context_buckets: tuple[int, ...] = ()
    page_size: int = 0
    num_kv_blocks: int = 0
    num_threads: int = 0
    time_limit_s: float = 120.0
    speculative: str = ""
    confidence_threshold: float = 0.0
    device: str = "cpu"
    allowed_fallbacks: tuple[str, ...] = ()
    prefill: str = "as-decode"
    enforce_eager: bool = True
    moe_capacity: int = 0
    compile_backend: str = ""

    def __post_init__(self) -> None:
        numerics_named(self.numerics)
        if self.cp < 1 or self.ep < 0:
            raise UsageError(f"cp={self.cp} ep={self.ep}: cp is at least 1, ep at least 0")
        if self.fp8_max not in (0, 240, 448):
            raise UsageError(f"fp8_max={self.fp8_max}: choose 240, 448 or 0 for the mode's own")
        if not 0 < self.time_limit_s < math.inf:
            raise UsageError(
                f"time_limit_s={self.time_limit_s}: a time limit is positive and finite"
            )
        if self.speculative not in ("", "dspark"):
            raise UsageError(f"speculative={self.speculative!r}: choose 'dspark' or nothing")
        if self.device not in ("cpu", "neuron"):
            raise UsageError(f"device {self.device!r} is not known: choose cpu or neuron")
        if self.prefill not in ("as-decode", "attention"):
            raise UsageError(f"prefill={self.prefill!r}: choose 'as-decode' or 'attention'")
        if self.compile_backend and self.enforce_eager:
            raise UsageError(
                f"compile_backend={self.compile_backend!r}: nothing is compiled with "
                "enforce_eager; give --no-enforce-eager too"
            )
        if self.moe_capacity < 0:
            raise UsageError(f"moe_capacity={self.moe_capacity}: it is at least 0 (no limit)")
        if not 0 <= self.confidence_threshold < 1:
            raise UsageError(
                f"confidence_threshold={self.confidence_threshold}: it lies within 0..1, 1 excluded"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return max(self.cp, self.ep)

    @property
    def label(self) -> str:
        """Short, stable text: "exact cp=2 ops=references"."""
        upper = self.ops[-1].partition(".")[0]
        parts = [self.numerics, f"cp={self.cp}"]
        if self.ep not in (0, self.cp):
            parts.append(f"ep={self.ep}")
        parts.append(f"ops={upper}")
        if self.fp8_max:
            parts.append(f"fp8_max={self.fp8_max}")
        if self.max_num_batched_tokens:
            parts.append(f"chunk={self.max_num_batched_tokens}")
        if self.speculative:
            parts.append(self.speculative)
        if self.confidence_threshold:
            parts.append(f"cut={self.confidence_threshold:g}")
        if self.prefill != "as-decode":
            parts.append("prefill-attention")
        if not self.enforce_eager:
            parts.append(f"compiled {self.compile_backend}".rstrip())
        if self.moe_capacity:
            parts.append(f"capacity={self.moe_capacity}")
        if self.device != "cpu":
            parts.append(self.device)
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step as a request met it, other requests' rows included.

    Attributes:
        num_rows, padded_rows: rows with tokens, and rows computed.
        context: context bucket in tokens.
        path: "decode" gathers each token's rows, "prefill" shares tiles of them.
    """

    num_rows: int
    padded_rows: int
    context: int
    path: str


def step_rows(steps: Sequence[StepShape]) -> list[dict[str, Any]]:
    """Steps as records keep them: equal ones in a row once, with their number."""
    return [{"count": len(list(run)), **asdict(shape)} for shape, run in groupby(steps)]


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished request with raw time stamps of one monotonic clock.

    Attributes:
        token_ids: generated ids.
        finish_reason: "length" or "stop".
        t_send_ns: perf_counter_ns before the request entered the engine.
        token_ns: perf_counter_ns at which each token was known, one per id.
        logits: [num_generated, V] fp64 (exact, quantised, trn2) or fp32 (fast), if asked for.
        num_prefill_steps: steps until the first token.
        bucket, padding_share: padded width of the first prefill step and its padding.
        counters: per decode step, equal on every step of the request: collectives, launches;
            "collectives_per_layer" is asserted by the engine against model.md §9. On a device
            also "fallbacks", and "fallback <op>" for each op that ran on the CPU.
            Of the whole request: "prefill_launches", ops called in the steps until its first
            token; under a capacity "moe_overflows", experts given more rows on the fullest rank,
            added over layers, and "moe_dense_reruns", layers whose experts ran again;
            "num_preemptions" where there were any; what drafts came to.
        steps: shape of every step the request took part in.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    t_send_ns: int
    token_ns: tuple[int, ...]
    prompt_len: int
    logits: npt.NDArray[np.floating] | None = None
    num_prefill_steps: int = 0
    bucket: int = 0
    padding_share: float = 0.0
    counters: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[StepShape, ...] = ()


class EngineFace(Protocol):
    """An engine at work. Used as a context manager; leaving it ends every rank."""

    @property
    def settings(self) -> EngineSettings:
        """What it was opened with."""

    @property
    def vocab_size(self) -> int:
        """Of the loaded checkpoint."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        ignore_eos: bool = True,
        want_logits: bool = False,
    ) -> list[Generation]:
        """Greedy continuation of each prompt (lowest id on ties), all in one batch.

        Raises:
            UsageError: empty prompt, id out of range, or longer than max_model_len.
            RankError: a rank died or hung; no rank survives it.
        """

    def score(self, ids: Sequence[int]) -> npt.NDArray[np.floating]:
        """Teacher-forced logits [len(ids), V]: row i is what follows ids[:i+1]."""

    def facts(self) -> Mapping[str, float]:
        """Facts of the last `score` or `generate`, e.g. the smallest share of candidate blocks
        excluded ("min_blocks_excluded_share") and window wraps ("num_window_wraps")."""

    def close(self) -> None:
        """End every rank; idempotent."""

    def __enter__(self) -> EngineFace:
        """Itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """`close()`."""


EngineFactory = Callable[[EngineSettings], EngineFace]
