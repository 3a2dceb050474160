"""One request on its way through the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.schedule.choice import TokenChooser
from engine.schedule.distribution import Distribution
from engine.schedule.speculation import Acceptance
from harness.core.engine_face import StepShape

__all__ = ["Request"]


@dataclass(slots=True, eq=False)
class Request:
    """What was asked, and what has been done.

    Attributes:
        tokens: prompt and generated ids.
        num_computed: tokens whose rows have been through the model.
        scores_prompt: logits of every row are wanted; with max_tokens=0 nothing is generated.
        on_logits: takes each step's logits rows [N, V]; `logits` then stays empty.
        chooser: picks tokens in place of the greedy choice that all ranks make.
        drafts: proposed tokens after the last of `tokens`, to be verified in the next step.
        proposals: what each draft was drawn from; () where drafts are greedy.
        steps: shape of every step it took part in.
        prefill_launches: ops called in the steps until its first token.
        capacity_counts: overflows and dense reruns of experts, of all its steps; empty without a
            capacity.
        num_preemptions: times its pages were taken from it; its tokens are then computed again.
        num_scored: of a request that scores its prompt, positions whose logits are out.
        nonfinite_position: the first position whose logits were no numbers; None: all were.
    """

    request_id: int
    prompt_len: int
    tokens: list[int]
    max_tokens: int
    ignore_eos: bool
    want_logits: bool
    scores_prompt: bool = False
    on_logits: Callable[[npt.NDArray[np.floating]], object] | None = None
    chooser: TokenChooser | None = None
    slot: int = -1
    pages: tuple[int, ...] = ()
    num_computed: int = 0
    num_prefill_steps: int = 0
    steps: list[StepShape] = field(default_factory=list)
    prefill_launches: float = 0.0
    capacity_counts: Counter[str] = field(default_factory=Counter)
    num_preemptions: int = 0
    num_scored: int = 0
    finish_reason: str = ""
    t_send_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    logits: list[npt.NDArray[np.floating]] = field(default_factory=list)
    blocks_excluded: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    drafts: tuple[int, ...] = ()
    proposals: tuple[Distribution, ...] = ()
    acceptance: Acceptance = field(default_factory=Acceptance)
    nonfinite_position: int | None = None

    @property
    def num_generated(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not yet computed."""
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Nothing but its last token is left to compute, and the prompt is behind."""
        return self.num_computed >= max(self.prompt_len, len(self.tokens) - 1)

    @property
    def first_padded_rows(self) -> int:
        """Width of its first step; 0 before it."""
        return self.steps[0].padded_rows if self.steps else 0

    @property
    def first_num_rows(self) -> int:
        """Rows of its first step without padding."""
        return self.steps[0].num_rows if self.steps else 0

    @property
    def told_counters(self) -> dict[str, float]:
        """What a Generation says of it: counts of a decode step, and those of the whole request."""
        counters = {**self.counters, **self.acceptance.counters()}
        counters["prefill_launches"] = self.prefill_launches
        counters.update({name: float(n) for name, n in self.capacity_counts.items()})
        if self.num_preemptions:
            counters["num_preemptions"] = float(self.num_preemptions)
        if self.nonfinite_position is not None:
            counters["nonfinite_position"] = float(self.nonfinite_position)
        return counters

    @property
    def max_total(self) -> int:
        """Tokens it may reach."""
        return self.prompt_len + self.max_tokens
