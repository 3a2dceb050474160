"""On which prompt and settings each engine fault shows, and where token match must see it.

Numbers are those of tiny-A: window 16, pages of 8 tokens, token bucket 16, compress ratios 1
and 2. Oracle and candidate run in `exact`: without a fault their logits agree within 1e-9.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from engine.llm import LLM
from harness.cli.engine_factory import TellingLLM
from harness.cli.engine_faults import ENGINE_FAULTS, Fault
from harness.core.engine_face import REFERENCE_OPS, EngineFace, EngineSettings
from harness.core.status import RunStatus
from harness.core.token_suite import Prompt, TokenPair
from harness.run.token_mutation import FaultCase, Finding

__all__ = [
    "FaultSettings",
    "case_of",
    "control_of",
    "fault_cases",
    "open_sound",
    "stalled_rank_on",
]

_BOUND = 1e-9
_WINDOW = 16
_SHORT = Prompt("short", max_tokens=8, length=12, seed=41)
_FULL_BUCKET = Prompt("full bucket", max_tokens=8, length=16, seed=41)

_ORACLE = EngineSettings("", numerics="exact", num_threads=1)


class FaultSettings(Enum):
    """The settings that faults are put into."""

    SOLO = EngineSettings("", numerics="exact", num_threads=1, token_bucket=16)
    RANKS = EngineSettings("", numerics="exact", num_threads=1, cp=2)
    BATCHES = EngineSettings("", numerics="exact", num_threads=1, ep=2)
    SLOTS = EngineSettings("", numerics="exact", num_threads=1, ep=2, moe_capacity=5)
    CHUNKS = EngineSettings("", numerics="exact", num_threads=1, max_num_batched_tokens=7)


_STALLS = replace(
    FaultSettings.RANKS.value,
    ops=(*REFERENCE_OPS, "harness.cli.stalled_ops:TABLE"),
    time_limit_s=5.0,
)

_S = FaultSettings
_FIRST = Finding(RunStatus.DIVERGED, "prefill", 0)
_MATCH = Finding(RunStatus.MATCH, None, None)


def _decode(position: int, status: RunStatus = RunStatus.DIVERGED) -> Finding:
    return Finding(status, "decode", position)


_PLACES: dict[str, tuple[Prompt, FaultSettings, Finding]] = {
    # The window is full at position 15, whose row gives the generated token 15 - 11.
    "window off by one": (_SHORT, _S.SOLO, _decode(_WINDOW - _SHORT.length)),
    # Layers of ratio 1 read the entry of the row itself: the first decoded row.
    "stale page": (_SHORT, _S.SOLO, _decode(1)),
    "rank-local argmax": (_SHORT, _S.RANKS, Finding(RunStatus.RANK_DESYNC, "prefill", 0)),
    # The ranks' count of collectives is checked at the end of the first decode step.
    "skipped collective": (_SHORT, _S.RANKS, _decode(1, RunStatus.CRASH)),
    "wrong expert shard": (_SHORT, _S.RANKS, _FIRST),
    "seed skew": (_SHORT, _S.RANKS, _FIRST),
    "sink dropped on one rank": (_SHORT, _S.RANKS, _FIRST),
    # 7 is odd: the second chunk begins within a group of two.
    "compressor tail lost at a chunk border": (_SHORT, _S.CHUNKS, _FIRST),
    "padding leak": (_SHORT, _S.SOLO, _FIRST),
    "bucket off by one": (_FULL_BUCKET, _S.SOLO, _FIRST),
    "scale of the neighbouring block": (_SHORT, _S.SOLO, _FIRST),
    # Handed on after the third token: the fourth reads another's entries.
    "page reused too early": (_SHORT, _S.SOLO, _decode(3)),
    "sums of another batch": (_SHORT, _S.BATCHES, _FIRST),
    "experts off by one on the wire": (_SHORT, _S.BATCHES, _FIRST),
    "overflow ignored": (_SHORT, _S.SLOTS, _FIRST),
    # In some layer experts of one rank alone get more than 5 of the 12 rows: it runs again and
    # meets the other in another collective.
    "overflow decided alone": (_SHORT, _S.SLOTS, Finding(RunStatus.CRASH, "prefill", 0)),
    # The first decoded row is written wrongly; the second would read it.
    "ring slot off by one": (_SHORT, _S.SOLO, _decode(2)),
    "newest entry hidden": (_SHORT, _S.SOLO, _FIRST),
    "position off by one": (_SHORT, _S.SOLO, _decode(1)),
}


def fault_cases() -> tuple[FaultCase, ...]:
    """Every fault, then the same settings without one."""
    faults = [
        case_of(name, prompt, settings, expected, ENGINE_FAULTS[name])
        for name, (prompt, settings, expected) in _PLACES.items()
    ]
    controls = [
        control_of(prompt, settings)
        for prompt, settings in dict.fromkeys(place[:2] for place in _PLACES.values())
    ]
    return (*faults, stalled_rank_on(_SHORT), *controls)


def stalled_rank_on(prompt: Prompt) -> FaultCase:
    """The one fault that needs ranks of their own: a hang has no place in lockstep."""
    name = "rank stops answering"
    pair = TokenPair(name, _STALLS, _ORACLE, "equal", logit_bound=_BOUND)
    return FaultCase(name, prompt, pair, _decode(1, RunStatus.HANG), TellingLLM)


def control_of(prompt: Prompt, settings: FaultSettings) -> FaultCase:
    """The same engine without a fault."""
    name = f"none: {settings.value.label}, {prompt.name}"
    return case_of(name, prompt, settings, _MATCH, _nothing)


def open_sound(settings: EngineSettings) -> LLM:
    """An engine whose ranks run in lockstep in this process."""
    several = settings.num_ranks > 1
    return TellingLLM.in_one_process(settings) if several else TellingLLM(settings)


def _nothing(_: LLM) -> None:
    """No fault."""


def case_of(
    name: str, prompt: Prompt, settings: FaultSettings, expected: Finding, fault: Fault
) -> FaultCase:
    """A fault on one prompt.

    Args:
        expected: what token match must say of it.
    """

    def open_faulty(chosen: EngineSettings) -> EngineFace:
        engine = open_sound(chosen)
        fault(engine)
        return engine

    pair = TokenPair(name, settings.value, _ORACLE, "equal", logit_bound=_BOUND)
    return FaultCase(name, prompt, pair, expected, open_faulty)
