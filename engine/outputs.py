"""What a rank says about a step: numbers and ids, no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.graphs.region_times import StepTimes
from engine.schedule.distribution import Distribution

__all__ = ["DraftOutput", "StepOutput"]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one rank says about a step.

    Attributes:
        token_ids: greedy id of each logits row, equal on all ranks of a batch that sample: all
            where the plan wants logits, else the first.
        logits: [N, V] if the plan wanted them (rank 0 only), fp64 or fp32.
        top: ids and logits [N, num_top] if the plan wanted them (rank 0 only), best first.
        blocks_excluded: of each logits row, the share of visible candidate blocks left out.
        counters: collectives, launches, collectives_per_layer.
        is_finite: of each logits row, whether its logits are numbers; () where nobody looked.
        times: of a timed rank, where the step's time went.
        strays: numbers within the batch of ranks whose hidden rows differ from those of most;
            found by the first rank where it samples alone from a sharded vocabulary.
    """

    token_ids: tuple[int, ...]
    logits: npt.NDArray[np.floating] | None = None
    blocks_excluded: tuple[float, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    is_finite: tuple[bool, ...] = ()
    times: StepTimes = field(default_factory=dict)
    top: tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]] | None = None
    strays: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftOutput:
    """What one rank says about a proposal.

    Attributes:
        token_ids: [sequence][block] drafts, equal on all ranks.
        confidence: [sequence][block] raw acceptance logits.
        proposals: [sequence][block] what drafts were drawn from; () where they are greedy.
    """

    token_ids: tuple[tuple[int, ...], ...]
    confidence: tuple[tuple[float, ...], ...]
    counters: dict[str, float] = field(default_factory=dict)
    proposals: tuple[tuple[Distribution, ...], ...] = ()
