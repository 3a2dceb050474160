"""What the engine knows of one request and a client cannot see (measurement.md §3).

Told only to a client that asks for it with a header, which other servers ignore; nobody else's
answers change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.schedule.request import Request

__all__ = ["FACTS_FIELD", "FACTS_HEADER", "request_facts", "wants_facts"]

FACTS_HEADER = "x-neuron-harness-facts"
FACTS_FIELD = "neuron_harness"


def wants_facts(headers: Mapping[str, str]) -> bool:
    """Whether a client asked."""
    return headers.get(FACTS_HEADER) == "1"


def request_facts(request: Request) -> dict[str, Any]:
    """Facts of a request that is over; null where there was no step to learn from.

    bucket, padding_share: width of its first step, and how much of it was padding.
    num_decode_steps: steps after the one of the first token that gave a token.
    counters: as a Generation has them.
    """
    padded, rows = request.first_padded_rows, request.first_num_rows
    return {
        "bucket": padded or None,
        "padding_share": (padded - rows) / padded if padded else None,
        "num_prefill_steps": request.num_prefill_steps,
        "num_decode_steps": max(0, len(set(request.token_ns)) - 1),
        "counters": request.told_counters,
    }
