"""One request on its way through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.schedule.speculation import Acceptance

__all__ = ["Request"]


@dataclass(slots=True)
class Request:
    """What was asked, and what has been done.

    Attributes:
        tokens: prompt and generated ids.
        num_computed: tokens whose rows have been through the model.
        scores_prompt: logits of every row are wanted; with max_tokens=0 nothing is generated.
        on_logits: takes each step's logits rows [N, V]; `logits` then stays empty.
        choose: picks a token from a logits row [V] in place of the greedy one; needs want_logits.
        drafts: proposed tokens after the last of `tokens`, to be verified in the next step.
        first_padded_rows, first_num_rows: width of its first step, with and without padding.
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
    choose: Callable[[npt.NDArray[np.floating]], int] | None = None
    slot: int = -1
    pages: tuple[int, ...] = ()
    num_computed: int = 0
    num_prefill_steps: int = 0
    first_padded_rows: int = 0
    first_num_rows: int = 0
    finish_reason: str = ""
    t_send_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    logits: list[npt.NDArray[np.floating]] = field(default_factory=list)
    blocks_excluded: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    drafts: tuple[int, ...] = ()
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
        """The whole prompt has been computed."""
        return self.num_computed >= self.prompt_len

    @property
    def max_total(self) -> int:
        """Tokens it may reach."""
        return self.prompt_len + self.max_tokens
