"""What is trained when: from short distances to long ones, from dense to selected, then rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SCHEDULE", "Phase", "phase_of"]

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
    sinkhorn_iterations: int = 2


SCHEDULE = (
    Phase(100, 64, _NEAR, lr=(0.0, 1.0)),
    Phase(700, 64, _NEAR),
    Phase(200, 96),
    Phase(300, 96, lr=(0.4, 0.4)),
    Phase(1000, 96, select_share=0.2, open_share=0.3, lr=(0.4, 0.3)),
    Phase(500, 96, select_share=0.6, open_share=0.4, lr=(0.3, 0.2), sinkhorn_iterations=4),
    Phase(
        800,
        128,
        select_share=0.8,
        open_share=0.6,
        rounds_weights=True,
        round_share=0.4,
        lr=(0.2, 0.01),
        sinkhorn_iterations=20,
    ),
)


def phase_of(step: int) -> tuple[Phase, float]:
    """The phase of a step, and the factor on learning rates there."""
    first = 0
    for phase in SCHEDULE:
        if step < first + phase.steps:
            begin, end = phase.lr
            return phase, begin + (end - begin) * (step - first) / phase.steps
        first += phase.steps
    raise ValueError(f"step {step}: the schedule has {first}")
