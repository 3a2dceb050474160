"""What is trained when: from short distances to long ones, from dense to selected, then rounded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SCHEDULE", "Phase", "begins_phase", "phase_of"]

_NEAR = {"loop-near": 2.0, "recall-near": 3.0, "edge": 0.5, "loop-2": 1.5, "loop-1": 1.5}
_ALL = {
    "loop-near": 1.0,
    "recall-near": 2.0,
    "edge": 0.5,
    "loop-2": 1.0,
    "recall-2": 3.0,
    "loop-1": 1.0,
    "recall-1": 3.0,
}
# Induction takes longer than recall, and ratio 1 longer than ratio 2.
_SLOW = {
    "loop-near": 2.0,
    "recall-near": 1.0,
    "edge": 0.4,
    "loop-2": 2.0,
    "recall-2": 1.0,
    "loop-1": 2.5,
    "recall-1": 4.0,
}
_RATIO_1 = {**_SLOW, "loop-near": 1.0, "loop-2": 1.5, "recall-1": 4.5, "loop-1": 4.5}


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training.

    Attributes:
        steps: how many.
        length: of the sequences.
        families: weights of the draw.
        select_share: of batches whose index selection binds; in others attention is dense.
        open_share: of batches in which every family may use every pathway.
        rounds_weights: whether the forward sees weights as the files hold them.
        round_share: of batches whose activations round as in `quantised`.
        lr: factors on the learning rates at the beginning and the end, linear between.
        cooled_layers: whose queries are made quieter before the phase: the scores of layers that
            found no work have grown until their attention saturates and learns no more.
        sink_floor: least value of attention sinks; below the scores that compete with a match,
            so that a sink takes what no key deserves and its loss is felt.
        sinkhorn_iterations: of the hyper-connections; fewer are faster and differ little.
    """

    steps: int
    length: int
    families: Mapping[str, float] = field(default_factory=lambda: _ALL)
    select_share: float = 0.0
    open_share: float = 0.0
    rounds_weights: bool = False
    round_share: float = 0.0
    lr: tuple[float, float] = (1.0, 1.0)
    cooled_layers: tuple[int, ...] = ()
    sink_floor: float = -100.0
    sinkhorn_iterations: int = 2


SCHEDULE = (
    Phase(100, 64, _NEAR, lr=(0.0, 1.0)),
    Phase(700, 64, _NEAR),
    Phase(200, 96),
    Phase(300, 96, lr=(0.4, 0.4)),
    Phase(200, 96, select_share=0.2, open_share=0.3, lr=(0.4, 0.4)),
    Phase(400, 96, _SLOW, select_share=0.3, open_share=0.25, lr=(0.4, 0.3)),
    Phase(
        100,
        96,
        _RATIO_1,
        select_share=0.3,
        open_share=0.2,
        lr=(0.5, 0.45),
        cooled_layers=(3, 4, 5),
    ),
    Phase(200, 96, _RATIO_1, select_share=0.3, open_share=0.2, lr=(0.45, 0.3), sink_floor=4.0),
    Phase(
        100,
        96,
        select_share=0.7,
        open_share=0.5,
        sink_floor=6.0,
        lr=(0.35, 0.25),
        sinkhorn_iterations=4,
    ),
    Phase(
        400,
        128,
        select_share=0.8,
        open_share=0.6,
        rounds_weights=True,
        round_share=0.4,
        sink_floor=6.0,
        lr=(0.25, 0.01),
        sinkhorn_iterations=10,
    ),
)


def begins_phase(step: int) -> bool:
    """Whether a phase has its first step here."""
    firsts = itertools.accumulate((phase.steps for phase in SCHEDULE), initial=0)
    return step in firsts


def phase_of(step: int) -> tuple[Phase, float]:
    """The phase of a step, and the factor on learning rates there."""
    first = 0
    for phase in SCHEDULE:
        if step < first + phase.steps:
            begin, end = phase.lr
            return phase, begin + (end - begin) * (step - first) / phase.steps
        first += phase.steps
    raise ValueError(f"step {step}: the schedule has {first}")
