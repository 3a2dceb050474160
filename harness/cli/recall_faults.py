"""The engine faults on tiny-T: which class of recall each must break.

A class is the prompts of suite `recall` with one stem ("ask-2-1", "ask-2-2", ...). On every prompt
of its class a fault must be found with the right status and phase; over the class it must change a
share of the tokens that no noise reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.cli.engine_faults import ENGINE_FAULTS
from harness.cli.fault_cases import FaultSettings, case_of, control_of, stalled_rank_on
from harness.core.status import RunStatus
from harness.core.token_suite import Prompt
from harness.run.token_mutation import FaultCase, FaultVerdict, Finding
from suites.loader import load_token_suite

__all__ = ["MIN_CHANGED_SHARE", "RECALL_SUITE", "ClassShare", "class_shares", "recall_cases"]

RECALL_SUITE = "recall"
# Of a class's tokens, for its fault to count as visible in tokens alone.
MIN_CHANGED_SHARE = 0.3

_S = FaultSettings
_FIRST = Finding(RunStatus.DIVERGED, "prefill", 0)
# Not among the classes of answers that tokens show: ranks disagree, or a run ends.
_LOUD = (RunStatus.RANK_DESYNC, RunStatus.CRASH, RunStatus.HANG)


def _decode(position: int, status: RunStatus = RunStatus.DIVERGED) -> Finding:
    return Finding(status, "decode", position)


_CLASSES: dict[str, tuple[str, FaultSettings, Finding]] = {
    "window off by one": ("edge", _S.SOLO, _FIRST),
    "stale page": ("behind-1", _S.SOLO, _decode(1)),
    "rank-local argmax": ("edge", _S.RANKS, Finding(RunStatus.RANK_DESYNC, "prefill", 0)),
    "skipped collective": ("edge", _S.RANKS, _decode(1, RunStatus.CRASH)),
    "wrong expert shard": ("behind-2", _S.RANKS, _FIRST),
    "seed skew": ("ask-near", _S.RANKS, _FIRST),
    "sink dropped on one rank": ("near", _S.RANKS, _FIRST),
    "compressor tail lost at a chunk border": ("ask-cut", _S.CHUNKS, _FIRST),
    "padding leak": ("early", _S.SOLO, _FIRST),
    "bucket off by one": ("bucket", _S.SOLO, _FIRST),
    "scale of the neighbouring block": ("behind-2", _S.SOLO, _FIRST),
    "page reused too early": ("behind-1", _S.SOLO, _decode(3)),
    "ring slot off by one": ("near", _S.SOLO, _decode(2)),
    "newest entry hidden": ("behind-2", _S.SOLO, _FIRST),
    "position off by one": ("edge", _S.SOLO, _decode(1)),
}


@dataclass(frozen=True, slots=True)
class ClassShare:
    """What a fault did to its class.

    Attributes:
        changed: share of the tokens whose ids it changed; None where no tokens are compared.
    """

    fault: str
    stem: str
    status: RunStatus
    changed: float | None

    @property
    def is_visible(self) -> bool:
        """Whether tokens alone give the fault away."""
        if self.status in _LOUD:
            return True
        return self.changed is not None and self.changed >= MIN_CHANGED_SHARE


def recall_cases() -> tuple[FaultCase, ...]:
    """A case for each fault and prompt of its class, then one control per settings and class."""
    prompts = load_token_suite(RECALL_SUITE).prompts
    faults = [
        case_of(name, prompt, settings, expected, ENGINE_FAULTS[name])
        for name, (stem, settings, expected) in _CLASSES.items()
        for prompt in _of_class(prompts, stem)
    ]
    controls = [
        control_of(_of_class(prompts, stem)[0], settings)
        for stem, settings in dict.fromkeys(place[:2] for place in _CLASSES.values())
    ]
    return (*faults, stalled_rank_on(_of_class(prompts, "edge")[0]), *controls)


def class_shares(verdicts: Sequence[FaultVerdict]) -> list[ClassShare]:
    """Of every fault that was judged, over the prompts of its class."""
    by_fault: dict[str, list[FaultVerdict]] = {}
    for verdict in verdicts:
        if not verdict.case.is_control:
            by_fault.setdefault(verdict.case.name, []).append(verdict)
    return [_class_share(name, judged) for name, judged in by_fault.items()]


def _class_share(name: str, judged: Sequence[FaultVerdict]) -> ClassShare:
    shares = [
        (one.changed_id_share * len(one.match.oracle_ids), len(one.match.oracle_ids))
        for one in judged
        if one.changed_id_share is not None
    ]
    changed = sum(part for part, _ in shares) / sum(n for _, n in shares) if shares else None
    stem = judged[0].case.prompt.name.rpartition("-")[0]
    return ClassShare(name, stem, judged[0].found.status, changed)


def _of_class(prompts: Sequence[Prompt], stem: str) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.name.rpartition("-")[0] == stem]
