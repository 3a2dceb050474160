"""Tokens of one call, as its usage counts them, as its log line times them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.serve.facts import FACTS_FIELD

__all__ = ["Usage"]


@dataclass(slots=True)
class Usage:
    """Tokens of one call so far, as OpenAI's `usage` counts them, and when they were sent.

    Attributes:
        num_sequences: of the call; times per token are those of a call of one.
        first_ns, last_ns: perf_counter_ns after the first and the last token was handed to the
            socket; 0 before.
        tells_facts: the client asked for what the engine knows (engine.serve.facts).
    """

    prompt_tokens: int
    num_sequences: int = 1
    tells_facts: bool = False
    completion_tokens: int = 0
    first_ns: int = 0
    last_ns: int = 0
    _facts: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)

    def take(self, index: int, facts: Mapping[str, Any] | None) -> None:
        """Count a token of a sequence that is about to be sent.

        Args:
            facts: of the engine, with a sequence's last token.
        """
        self.completion_tokens += 1
        self._facts[index] = facts

    def mark_sent(self) -> None:
        """The token counted last is with the socket."""
        self.last_ns = time.perf_counter_ns()
        self.first_ns = self.first_ns or self.last_ns

    def log_facts(self, start_ns: int) -> dict[str, str]:
        """Words for the request's log line; what was not measured is left out.

        Args:
            start_ns: when the request came in.
        """
        words = {"completion_tokens": str(self.completion_tokens)}
        if self.first_ns:
            words["ttft_ms"] = f"{(self.first_ns - start_ns) / 1e6:.3f}"
        if self.first_ns and self.num_sequences == 1 and self.completion_tokens > 1:
            span_ms = (self.last_ns - self.first_ns) / 1e6
            words["tpot_ms"] = f"{span_ms / (self.completion_tokens - 1):.4f}"
        return words

    def body(self) -> dict[str, int]:
        """The JSON object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def tail(self) -> dict[str, Any]:
        """What follows the last token: the usage, and the engine's facts where they are told.

        A sequence that the engine did not end itself, a stop text did, has null in their place.
        """
        tail: dict[str, Any] = {"usage": self.body()}
        if self.tells_facts:
            facts = [self._facts.get(index) for index in range(self.num_sequences)]
            tail[FACTS_FIELD] = {"sequences": facts}
        return tail
