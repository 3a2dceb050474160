"""A run as the harness would leave it, built from the core dataclasses with seeded numbers.

`write_sample(directory)` writes every status a document must show: red and green cases, crashed,
failed and pruned points, every gate status, names with markup. The copy under `data/sample` is
what earlier versions wrote; a test renders it, so that old records stay readable. Rebuild it with
`python -m tests.reports.sample_run`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.core.case import Case
from harness.core.metric import Direction, GateVerdict, Metric, MetricKind
from harness.core.record import RunRecord, to_plain
from harness.core.results import OutputErrors, ParityResult, PointStatus, TokenMatch
from harness.core.status import GateStatus, OpStatus, PositionStatus, RunStatus
from tests.reports.sample_names import MARKUP
from tests.reports.sample_sweep import sweep_points

DATA = Path(__file__).parent / "data" / "sample"
RUN_ID = "20261130-101500-beef"
ENVIRONMENT: Mapping[str, Any] = {
    "python": "3.11.9",
    "torch": "2.13.0+cpu",
    "numpy": "2.4.6",
    "platform": "Linux-6.1",
    "machine": "x86_64",
    "cpu_model": "Example CPU @ 2.0GHz",
    "num_cores": 2,
    "torch_threads": 1,
    "blas": "mkl",
    "git": "3b2b053aa",
    "sdk": {
        "nki": {"state": "absent", "version": ""},
        "neuronx-cc": {"state": "absent", "version": ""},
        "torch-neuronx": {"state": "absent", "version": ""},
    },
    "origin": "cpu-interpreter",
    "seeds": {"prompts": 0, "cases": 0},
}
_OPS = (
    "rms_norm",
    "swiglu",
    "linear_fp8",
    "linear_fp4_grouped",
    "sparse_attention",
    "index_scores",
    "vocab_argmax",
)


def record(kind: str, key: str, payload: object, environment: Any = None) -> RunRecord:
    """One record of the sample run."""
    return RunRecord(
        kind,
        RUN_ID,
        key,
        "2026-11-30T10:15:00.000+00:00",
        ENVIRONMENT if environment is None else environment,
        to_plain(payload),
    )


def output_errors(ratio: float, *, name: str = "y", mismatched: int | None = None) -> OutputErrors:
    """Errors whose worst slice uses `ratio` of its budget."""
    return OutputErrors(
        name=name,
        num_compared=4096,
        max_abs=0.001 * ratio,
        max_rel=0.01 * ratio,
        rms=0.0004 * ratio,
        baseline_rms=0.0004,
        baseline_max=0.0009,
        budget_ratio=ratio,
        worst_slice=(3,),
        worst_index=(3, 17),
        worst_kernel_value=1.0 + 0.001 * ratio,
        worst_golden_value=1.0,
        cosine=0.99998,
        ulp_histogram={"0": 3900, "1": 180, "2": 12, "3-10": 4, ">10": 0},
        below_golden_share=0.49,
        num_mismatched=mismatched,
    )


def parity_results(rng: random.Random) -> list[ParityResult]:
    """Eight cases an op; five of them red in five ways, one skipped."""
    red = {
        ("sparse_attention", 3): (
            OpStatus.OUT_OF_TOLERANCE,
            "y: slice (3,) uses 4.20 times its budget",
        ),
        ("linear_fp8", 5): (OpStatus.RUN_ERROR, "nc_matmul: operand `stationary` is in PSUM"),
        ("index_scores", 2): (OpStatus.UNWRITTEN, "scores: 128 elements keep the poison"),
        ("swiglu", 7): (OpStatus.TIMEOUT, f"no answer within 30 s {MARKUP}"),
        ("vocab_argmax", 6): (OpStatus.UNSUPPORTED, "the simulator lacks nc_find_index8"),
        ("rms_norm", 1): (OpStatus.SKIPPED, "zero rows are judged by the zero_rows family"),
    }
    results = []
    for op in _OPS:
        for place in range(8):
            family = ("base", "tail", "ties", "zero_block")[place % 4]
            case = Case(op, {"T": 2**place, "d": 512}, family=family, seed=place)
            status, message = red.get((op, place), (OpStatus.PASS, ""))
            errors: tuple[OutputErrors, ...] = ()
            if status is OpStatus.PASS:
                errors = (output_errors(round(rng.uniform(0.05, 0.9), 4)),)
            elif status is OpStatus.OUT_OF_TOLERANCE:
                errors = (output_errors(4.2), output_errors(0.4, name="lse"))
            elapsed_ms = tuple(round(rng.uniform(3, 40), 3) for _ in range(3)) if errors else ()
            detail = (
                "Traceback (most recent call last):\n  …" if status.value == "RUN_ERROR" else ""
            )
            results.append(
                ParityResult(
                    case_id=case.case_id,
                    op=op,
                    backend="interpret",
                    status=status,
                    message=message,
                    detail=detail,
                    errors=errors,
                    nulls={"zeros": True, "mean": True, "doubled": True} if place == 0 else {},
                    elapsed_ms=elapsed_ms,
                    counters={"instructions": 40 + 8 * place, "dma_bytes": 4096 * 2**place},
                )
            )
    return results


def token_match(
    prompt: str, candidate: str, num: int, *, near_tie_at: int | None = None, **more: Any
) -> TokenMatch:
    """A comparison over `num` positions that agrees, or nearly ties at one of them."""
    positions = [PositionStatus.MATCH] * num
    status, message = RunStatus.MATCH, ""
    if near_tie_at is not None:
        positions[near_tie_at] = PositionStatus.NEAR_TIE
        status, message = RunStatus.NEAR_TIE, f"near tie at {near_tie_at}"
    fields: dict[str, Any] = {
        "prompt": prompt,
        "candidate": candidate,
        "oracle": "exact cp=1 ops=references",
        "status": status,
        "message": message,
        "positions": tuple(positions),
        "first_divergence": near_tie_at,
        "phase": None if near_tie_at is None else ("decode" if near_tie_at else "prefill"),
        "prompt_length": 12 if prompt == "short" else 96,
        "prefix_length": num if near_tie_at is None else near_tie_at,
        "num_generated": num,
        "forced_match_rate": 1.0 if near_tie_at is None else 1.0 - 1.0 / num,
        "max_logit_error": 3.1e-12,
        "logit_bound": 1e-9,
        "mean_kl_nats": 2.5e-9,
        "margins": tuple(round(0.4 + 0.37 * place, 3) for place in range(num)),
        "counters": {"collectives_per_step": 24.0},
    }
    fields |= more
    changed = (n for n, one in enumerate(fields["positions"]) if one is not PositionStatus.MATCH)
    return TokenMatch(**{"first_changed": next(changed, None), **fields})


def token_matches() -> list[TokenMatch]:
    """Every run status."""
    diverged = (PositionStatus.MATCH,) * 4 + (PositionStatus.DIVERGED,) * 5
    fast = "fast cp=1 ops=kernels"
    near = {"noise": 0.0021, "logit_bound": 0.0084, "max_logit_error": 0.0031}
    return [
        token_match("short", "exact cp=2 ops=references", 9),
        token_match("long", "exact cp=2 ops=references", 32),
        token_match("short", "exact cp=4 ops=references", 9),
        token_match("long", "exact cp=4 ops=references", 32),
        token_match("short", fast, 9, near_tie_at=8, oracle="fast cp=1 ops=references", **near),
        token_match("long", fast, 9, oracle="fast cp=1 ops=references", **near),
        token_match(
            MARKUP,
            fast,
            9,
            status=RunStatus.DIVERGED,
            message=f"position 4: 17 instead of 4 {MARKUP}",
            positions=diverged,
            first_divergence=4,
            phase="decode",
            prefix_length=4,
            forced_match_rate=4 / 9,
            max_logit_error=1.7,
        ),
        TokenMatch(
            "long",
            "exact cp=8 ops=references",
            "exact cp=1 ops=references",
            RunStatus.HANG,
            message="rank 3: no answer within 120 s",
            detail="first differing collective: all_reduce[7]",
        ),
        TokenMatch(
            "short",
            "exact cp=8 ops=references",
            "exact cp=1 ops=references",
            RunStatus.SKIPPED,
            message="cp=8 does not divide 4 index heads",
        ),
    ]


def gate_verdicts() -> list[GateVerdict]:
    """Every gate status."""
    equal = {"unit": "status", "baseline": "PASS", "candidate": "PASS"}
    timing = {"unit": "ms", "baseline": 41.2, "candidate": 45.9, "num_pairs": 10}
    return [
        GateVerdict("parity.rms_norm", GateStatus.PASS, "equal", **equal),
        GateVerdict(
            "sweep.tpot_ms.cp=1",
            GateStatus.REGRESSED,
            "11.4 % slower, lower bound 8.9 %",
            effect=0.114,
            lower_bound=0.089,
            p_value=0.002,
            **timing,
        ),
        GateVerdict(
            "sweep.ttft_ms.cp=1",
            GateStatus.IMPROVED,
            "4.1 % faster",
            effect=-0.041,
            lower_bound=-0.06,
            p_value=0.004,
            **timing,
        ),
        GateVerdict(
            "sweep.tpot_ms.cp=2",
            GateStatus.INCONCLUSIVE,
            "3 pairs of runs, 10 are needed",
            unit="ms",
            baseline=31.0,
            candidate=31.4,
            num_pairs=3,
            advisory=True,
        ),
        GateVerdict("tokens.long.cp=8", GateStatus.MISSING, "the baseline has it, this run lacks"),
        GateVerdict("parity.topk", GateStatus.NEW, "not in the baseline", candidate="PASS"),
        GateVerdict("engine.graphs", GateStatus.NO_BASELINE, "no baseline given", advisory=True),
        GateVerdict("sweep.e2el_ms", GateStatus.INCOMPARABLE, "unit s against ms", advisory=True),
        GateVerdict("sweep.self", GateStatus.INVALID, "the same run on both sides", advisory=True),
    ]


def stages() -> list[dict[str, Any]]:
    """Payloads of kind "stage"."""
    rows = [("checkpoint", "PASS", 4.21, ""), ("parity", "MISMATCH", 18.4, "5 of 56 cases are red")]
    rows += [("tokens", "RANK", 22.9, "1 hang"), ("sweep", "RANK", 31.0, "1 point crashed")]
    rows += [("gate", "MISMATCH", 0.3, "2 metrics")]
    fields = ("name", "status", "elapsed_s", "message")
    return [dict(zip(fields, row, strict=True)) for row in rows]


def sample_records() -> list[RunRecord]:
    """The whole sample run."""
    rng = random.Random(20261130)
    return [
        *(record("parity", item.case_id, item) for item in parity_results(rng)),
        *(
            record("tokens", f"{item.prompt} {item.candidate} vs {item.oracle}", item)
            for item in token_matches()
        ),
        *(record("sweep", item.key, item) for item in sweep_points(rng)),
        record(
            "metric",
            "tokens.collectives_per_step",
            Metric(
                "tokens.collectives_per_step",
                (24.0,),
                "1",
                Direction.EQUAL,
                MetricKind.DETERMINISTIC,
            ),
        ),
        *(record("gate", item.metric, item) for item in gate_verdicts()),
        *(record("stage", item["name"], item) for item in stages()),
    ]


def green_records() -> list[RunRecord]:
    """A small run without a blemish."""
    rng = random.Random(7)
    good = [item for item in parity_results(rng) if item.status is OpStatus.PASS][:8]
    points = [item for item in sweep_points(rng) if item.status == PointStatus.OK]
    return [
        *(record("parity", item.case_id, item) for item in good),
        *(
            record("tokens", f"{item.prompt} {item.candidate}", item)
            for item in token_matches()
            if item.status in (RunStatus.MATCH, RunStatus.NEAR_TIE)
        ),
        *(record("sweep", item.key, item) for item in points),
        record("gate", "parity.rms_norm", gate_verdicts()[0]),
        record("stage", "parity", {**stages()[0], "name": "parity"}),
    ]


def write_run(
    directory: Path, records: Iterable[RunRecord], environment: Mapping[str, Any] = ENVIRONMENT
) -> Path:
    """Write records and a run.json; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {}
    for item in records:
        lines.setdefault(item.kind, []).append(item.to_line() + "\n")
    for kind, texts in lines.items():
        (directory / f"{kind}.jsonl").write_text("".join(texts), encoding="utf-8")
    run = {
        "run_id": RUN_ID,
        "command": ["neuron-harness", "run", "--preset", "tiny"],
        "start": "2026-11-30T10:15:00.000+00:00",
        "environment": dict(environment),
    }
    (directory / "run.json").write_text(json.dumps(run, sort_keys=True) + "\n", encoding="utf-8")
    return directory


def write_sample(directory: Path) -> Path:
    """Write the sample run; returns the directory."""
    return write_run(directory, sample_records())


if __name__ == "__main__":
    write_sample(DATA)
