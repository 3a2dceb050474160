"""From the sampling a client asked for to the chooser of its request."""

from __future__ import annotations

from engine.schedule.choice import TokenChooser
from engine.schedule.distribution import SamplingRule
from engine.serve.requests import Sampling

__all__ = ["chooser_for"]


def chooser_for(sampling: Sampling, seed: int, eos_token_id: int) -> TokenChooser | None:
    """Who picks the tokens; None leaves it to the ranks' own greedy choice.

    Args:
        seed: of this sequence.
    """
    # An end token that ends nothing need not be kept away, unless tokens are drawn anyway.
    is_held_back = sampling.min_tokens > 0 and not sampling.ignore_eos
    if sampling.temperature == 0 and not is_held_back:
        return None
    rule = SamplingRule(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=seed,
        min_tokens=sampling.min_tokens,
    )
    return TokenChooser(rule, eos_token_id)
