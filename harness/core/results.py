"""What was found: one dataclass a verdict, checked so that evidence and status agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.status import OpStatus, PositionStatus, RunStatus

__all__ = ["ErrorMap", "OutputErrors", "ParityResult", "PointStatus", "SweepPoint", "TokenMatch"]


@dataclass(frozen=True, slots=True)
class OutputErrors:
    """How far one output is from its golden (measurement.md §1).

    Attributes:
        name: output name of the signature sheet.
        num_compared: elements compared; never 0 in a PASS.
        max_abs, max_rel, rms: errors of the kernel against the golden.
        baseline_rms, baseline_max: the same of the baseline.
        budget_ratio: worst slice's error over its budget; <= 1 passes.
        worst_slice: index of that slice along the tolerance's slice axes.
        worst_index: full index of the largest error, with both values.
        cosine: of mean-removed data, None where a side has no variance.
        ulp_histogram: ULP distance -> count in the output dtype ("0", "1", "2", "3-10", ">10").
        below_golden_share: among elements that differ; None where none does.
        num_mismatched: of exact outputs; None where a budget judged.
    """

    name: str
    num_compared: int
    max_abs: float
    max_rel: float
    rms: float
    baseline_rms: float
    baseline_max: float
    budget_ratio: float
    worst_slice: tuple[int, ...]
    worst_index: tuple[int, ...]
    worst_kernel_value: float
    worst_golden_value: float
    cosine: float | None
    ulp_histogram: Mapping[str, int]
    below_golden_share: float | None
    num_mismatched: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorMap:
    """Where an output differs, in coarse cells.

    Attributes:
        shape: rows (all axes but the last) and columns of the output.
        measure: "share" of elements that differ, or "relative" to the output's largest error.
        cells: [at most 16][at most 32], each in [0, 1].
    """

    shape: tuple[int, ...]
    measure: str
    cells: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class ParityResult:
    """The verdict on one case under one backend.

    Attributes:
        backend: what ran the kernel: "interpret", "simulate" or "device".
        message: what is wrong, one line; empty in a PASS.
        detail: a traceback or an excerpt, may be empty.
        errors: one entry per compared output; present iff values were compared.
        nulls: null solution -> whether the judge rejected it; present on probe cases.
        num_fallbacks: ops that ran elsewhere than asked.
        elapsed_ms: raw wall times, one per repeat.
        counters: what the interpreter counted (instructions, bytes, SBUF high-water).
        bundle: directory that replays a failing case, empty if none was left.
        error_maps: output -> where it differs, of a case whose values are wrong.
    """

    case_id: str
    op: str
    backend: str
    status: OpStatus
    message: str = ""
    detail: str = ""
    errors: tuple[OutputErrors, ...] = ()
    nulls: Mapping[str, bool] = field(default_factory=dict)
    num_fallbacks: int = 0
    elapsed_ms: tuple[float, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    bundle: str = ""
    error_maps: Mapping[str, ErrorMap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status.compared_values != bool(self.errors):
            raise ValueError(f"{self.case_id}: {self.status.value} with {len(self.errors)} errors")
        if self.status is OpStatus.PASS:
            if any(error.num_compared <= 0 for error in self.errors):
                raise ValueError(f"{self.case_id}: a PASS compared no element")
            if any(not math.isfinite(error.budget_ratio) for error in self.errors):
                raise ValueError(f"{self.case_id}: a PASS with a budget ratio that is no number")
        elif self.status is not OpStatus.SKIPPED and not self.message:
            raise ValueError(f"{self.case_id}: {self.status.value} without a message")


@dataclass(frozen=True, slots=True)
class TokenMatch:
    """One prompt under one pair of settings (measurement.md §2).

    Attributes:
        prompt: name of the prompt in the suite.
        candidate, oracle: setting labels, e.g. "exact cp=2 ops=references".
        positions: status of each generated position, forced on the oracle's prefix.
        first_divergence: first free-running position whose ids differ, None if none does.
        first_changed: first position that does not match, by logits or ids; where ranks failed,
            the tokens there were by then. None if all match, or if that is not known.
        phase: "prefill" if position 0 differs first, "decode" for a later one, else None.
        prefix_length, num_generated: length of the equal prefix and of the continuation.
        forced_match_rate: top-1 agreement under teacher forcing, in [0, 1].
        max_logit_error: max over positions and vocabulary of |z_cand - z_ref|.
        logit_bound: the bound it was held against.
        noise: N of the near-tie rule, from runs without the candidate; None in strict modes.
        mean_kl_nats: mean KL(oracle || candidate) over positions.
        counters: deterministic counts of the candidate (collectives per step, ...).
    """

    prompt: str
    candidate: str
    oracle: str
    status: RunStatus
    message: str = ""
    detail: str = ""
    positions: tuple[PositionStatus, ...] = ()
    first_divergence: int | None = None
    phase: str | None = None
    prompt_length: int = 0
    prefix_length: int = 0
    num_generated: int = 0
    forced_match_rate: float | None = None
    max_logit_error: float | None = None
    logit_bound: float | None = None
    noise: float | None = None
    mean_kl_nats: float | None = None
    margins: tuple[float, ...] = ()
    candidate_ids: tuple[int, ...] = ()
    oracle_ids: tuple[int, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    first_changed: int | None = None

    def __post_init__(self) -> None:
        compared = self.status in (RunStatus.MATCH, RunStatus.NEAR_TIE, RunStatus.DIVERGED)
        if compared and not self.positions:
            raise ValueError(f"{self.prompt}: {self.status.value} without a compared position")
        if self.status is RunStatus.MATCH and self.first_divergence is not None:
            raise ValueError(f"{self.prompt}: MATCH with a divergence")
        if self.status is not RunStatus.MATCH and not self.message:
            raise ValueError(f"{self.prompt}: {self.status.value} without a message")


class PointStatus:
    """How a point of a sweep ended; text, because old records must stay readable."""

    OK = "OK"
    FAILED = "FAILED"
    PRUNED = "PRUNED"
    CRASHED = "CRASHED"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One cell of the TTFT/TPOT matrix, with raw samples.

    Attributes:
        key: hash of the whole configuration; the last record of a key wins.
        config: everything that distinguishes the point (input_len, output_len, cp, ep,
            concurrency, numerics, ops, checkpoint hash, buckets, ...).
        requests: one mapping per measured request: t_send_ns, token_ns (one per token, same
            monotonic clock), prompt_len, num_tokens, count_source, finish_reason, bucket,
            padding_share.
        warmups: the same for warm-up requests, excluded from every statistic.
        counters: counts per step (collectives, launches, ...), and over all requests what drafts
            came to and how often experts overflowed.
        compile_events: during measurement, those of warm-ups excluded; None where nobody tells.
        facts: what is not deterministic and no latency: load of the machine, how far the first
            repeat is from the others, the client's own share of a core.
    """

    key: str
    config: Mapping[str, Any]
    status: str
    message: str = ""
    requests: tuple[Mapping[str, Any], ...] = ()
    warmups: tuple[Mapping[str, Any], ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    compile_events: int | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A FAILED point keeps the requests that show why.
        if self.status == PointStatus.OK and not self.requests:
            raise ValueError(f"point {self.key}: {self.status} without a request")
        if self.status != PointStatus.OK and not self.message:
            raise ValueError(f"point {self.key}: {self.status} without a message")
