"""On which prompt and settings each engine fault shows, and where token match must see it.

Numbers are those of tiny-A: window 16, pages of 8 tokens, token bucket 16, compress ratios 1
and 2. Oracle and candidate run in `exact`: without a fault their logits agree within 1e-9.
"""

from __future__ import annotations

from dataclasses import replace

from engine.llm import LLM
from harness.cli.engine_factory import TellingLLM
from harness.cli.engine_faults import ENGINE_FAULTS, Fault
from harness.core.engine_face import REFERENCE_OPS, EngineFace, EngineSettings
from harness.core.status import RunStatus
from harness.core.token_suite import Prompt, TokenPair
from harness.run.token_mutation import FaultCase, Finding

__all__ = ["fault_cases", "open_sound"]

_BOUND = 1e-9
_WINDOW = 16
_SHORT = Prompt("short", max_tokens=8, length=12, seed=41)
_FULL_BUCKET = Prompt("full bucket", max_tokens=8, length=16, seed=41)

_ORACLE = EngineSettings("", numerics="exact", num_threads=1)
_SOLO = EngineSettings("", numerics="exact", num_threads=1, token_bucket=16)
_RANKS = EngineSettings("", numerics="exact", num_threads=1, cp=2)
_BATCHES = EngineSettings("", numerics="exact", num_threads=1, ep=2)
_SLOTS = EngineSettings("", numerics="exact", num_threads=1, ep=2, moe_capacity=5)
_CHUNKS = EngineSettings("", numerics="exact", num_threads=1, max_num_batched_tokens=7)

_STALLS = replace(_RANKS, ops=(*REFERENCE_OPS, "harness.cli.stalled_ops:TABLE"), time_limit_s=5.0)

_FIRST = Finding(RunStatus.DIVERGED, "prefill", 0)
_MATCH = Finding(RunStatus.MATCH, None, None)


def _decode(position: int, status: RunStatus = RunStatus.DIVERGED) -> Finding:
    return Finding(status, "decode", position)


_PLACES: dict[str, tuple[Prompt, EngineSettings, Finding]] = {
    # The window is full at position 15, whose row gives the generated token 15 - 11.
    "window off by one": (_SHORT, _SOLO, _decode(_WINDOW - _SHORT.length)),
    # Layers of ratio 1 read the entry of the row itself: the first decoded row.
    "stale page": (_SHORT, _SOLO, _decode(1)),
    "rank-local argmax": (_SHORT, _RANKS, Finding(RunStatus.RANK_DESYNC, "prefill", 0)),
    # The ranks' count of collectives is checked at the end of the first decode step.
    "skipped collective": (_SHORT, _RANKS, _decode(1, RunStatus.CRASH)),
    "wrong expert shard": (_SHORT, _RANKS, _FIRST),
    "seed skew": (_SHORT, _RANKS, _FIRST),
    "sink dropped on one rank": (_SHORT, _RANKS, _FIRST),
    # 7 is odd: the second chunk begins within a group of two.
    "compressor tail lost at a chunk border": (_SHORT, _CHUNKS, _FIRST),
    "padding leak": (_SHORT, _SOLO, _FIRST),
    "bucket off by one": (_FULL_BUCKET, _SOLO, _FIRST),
    "scale of the neighbouring block": (_SHORT, _SOLO, _FIRST),
    # Handed on after the third token: the fourth reads another's entries.
    "page reused too early": (_SHORT, _SOLO, _decode(3)),
    "sums of another batch": (_SHORT, _BATCHES, _FIRST),
    "experts off by one on the wire": (_SHORT, _BATCHES, _FIRST),
    "overflow ignored": (_SHORT, _SLOTS, _FIRST),
    # In some layer experts of one rank alone get more than 5 of the 12 rows: it runs again and
    # meets the other in another collective.
    "overflow decided alone": (_SHORT, _SLOTS, Finding(RunStatus.CRASH, "prefill", 0)),
    # The first decoded row is written wrongly; the second would read it.
    "ring slot off by one": (_SHORT, _SOLO, _decode(2)),
    "newest entry hidden": (_SHORT, _SOLO, _FIRST),
    "position off by one": (_SHORT, _SOLO, _decode(1)),
}


def fault_cases() -> tuple[FaultCase, ...]:
    """Every fault, then the same settings without one."""
    faults = [
        _case(name, prompt, settings, expected, ENGINE_FAULTS[name])
        for name, (prompt, settings, expected) in _PLACES.items()
    ]
    controls = [
        _case(f"none: {settings.label}, {prompt.name}", prompt, settings, _MATCH, _nothing)
        for prompt, settings in dict.fromkeys(place[:2] for place in _PLACES.values())
    ]
    return (*faults, _stalled_rank(), *controls)


def _stalled_rank() -> FaultCase:
    """The one fault that needs ranks of their own: a hang has no place in lockstep."""
    name = "rank stops answering"
    pair = TokenPair(name, _STALLS, _ORACLE, "equal", logit_bound=_BOUND)
    return FaultCase(name, _SHORT, pair, _decode(1, RunStatus.HANG), TellingLLM)


def open_sound(settings: EngineSettings) -> LLM:
    """An engine whose ranks run in lockstep in this process."""
    several = settings.num_ranks > 1
    return TellingLLM.in_one_process(settings) if several else TellingLLM(settings)


def _nothing(_: LLM) -> None:
    """No fault."""


def _case(
    name: str, prompt: Prompt, settings: EngineSettings, expected: Finding, fault: Fault
) -> FaultCase:
    def open_faulty(chosen: EngineSettings) -> EngineFace:
        engine = open_sound(chosen)
        fault(engine)
        return engine

    pair = TokenPair(name, settings, _ORACLE, "equal", logit_bound=_BOUND)
    return FaultCase(name, prompt, pair, expected, open_faulty)
