"""From two transcripts of one prompt to a TokenMatch (measurement.md §2).

A transcript holds what one setting said: its own greedy continuation, and the logits it gives
when it is forced along the oracle's continuation. Position statuses come from the forced logits;
where the free runs part, the logits of the free runs (equal prefix) are judged too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from harness.core.results import TokenMatch
from harness.core.status import PositionStatus, RunStatus
from harness.core.token_suite import NearTieLimits, Prompt, TokenPair
from harness.run.near_tie import (
    judge_equal,
    judge_near_tie,
    logit_bound,
    mean_kl_nats,
    top1_margins,
)
from harness.run.statistics import sign_test_p

__all__ = ["Flip", "Transcript", "apply_guards", "flips_of", "judge_prompt"]

Logits = npt.NDArray[np.floating]

_SEVERITY = (PositionStatus.MATCH, PositionStatus.NEAR_TIE, PositionStatus.DIVERGED)


@dataclass(frozen=True, slots=True)
class Transcript:
    """What one setting said on one prompt.

    Attributes:
        token_ids: its own greedy continuation.
        generated_logits: logits of that continuation.
        forced_logits: logits when forced along the oracle's ids.
        facts: of the run, e.g. window wraps.
        counters: per decode step.
    """

    token_ids: tuple[int, ...]
    generated_logits: Logits
    forced_logits: Logits
    facts: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flip:
    """A near tie that fell the other way: the oracle says a, the candidate b."""

    position: int
    oracle_id: int
    candidate_id: int


def judge_prompt(
    prompt: Prompt,
    pair: TokenPair,
    oracle: Transcript,
    candidate: Transcript,
    *,
    limits: NearTieLimits,
    noise: float | None = None,
) -> TokenMatch:
    """Compare two transcripts of one prompt; the guards over the whole pair come later.

    Args:
        noise: N, for a near-tie pair; None for a strict one.
    """
    positions = _judge_forced(pair, oracle, candidate, limits, noise)
    divergence = _first_divergence(oracle.token_ids, candidate.token_ids)
    shared = len(oracle.token_ids) if divergence is None else divergence + 1
    _judge_free(positions, pair, oracle, candidate, shared, limits, noise)
    status, message = _verdict(prompt, positions, divergence, oracle, candidate)
    forced_ids = np.argmax(candidate.forced_logits, axis=-1) == np.argmax(
        oracle.forced_logits, axis=-1
    )
    finite = _all_finite(oracle, candidate)
    return TokenMatch(
        prompt=prompt.name,
        candidate=pair.candidate.label,
        oracle=pair.oracle.label,
        status=status,
        message=message,
        positions=tuple(positions),
        first_divergence=divergence,
        phase=None if divergence is None else ("prefill" if divergence == 0 else "decode"),
        prompt_length=prompt.num_tokens,
        prefix_length=len(oracle.token_ids) if divergence is None else divergence,
        num_generated=len(oracle.token_ids),
        forced_match_rate=float(forced_ids.mean()),
        max_logit_error=_max_logit_error(oracle, candidate, shared) if finite else None,
        logit_bound=_largest_bound(oracle, noise)
        if finite and noise is not None
        else pair.logit_bound,
        noise=noise,
        mean_kl_nats=mean_kl_nats(oracle.forced_logits, candidate.forced_logits)
        if finite
        else None,
        margins=top1_margins(oracle.forced_logits) if finite else (),
        candidate_ids=candidate.token_ids,
        oracle_ids=oracle.token_ids,
        counters={**candidate.facts, **candidate.counters},
        first_changed=next(
            (place for place, one in enumerate(positions) if one is not PositionStatus.MATCH),
            divergence,
        ),
    )


def flips_of(oracle: Transcript, candidate: Transcript) -> tuple[Flip, ...]:
    """Positions whose forced argmax differs, and the one where the free runs part."""
    flips = {
        position: Flip(position, int(a), int(b))
        for position, (a, b) in enumerate(
            zip(
                np.argmax(oracle.forced_logits, axis=-1),
                np.argmax(candidate.forced_logits, axis=-1),
                strict=True,
            )
        )
        if a != b
    }
    divergence = _first_divergence(oracle.token_ids, candidate.token_ids)
    if divergence is not None and divergence < min(len(oracle.token_ids), len(candidate.token_ids)):
        ids = (oracle.token_ids[divergence], candidate.token_ids[divergence])
        flips.setdefault(divergence, Flip(divergence, *ids))
    return tuple(flips[position] for position in sorted(flips))


def apply_guards(
    matches: Sequence[TokenMatch], flips: Sequence[Sequence[Flip]], limits: NearTieLimits
) -> list[TokenMatch]:
    """Withdraw near ties of one pair that are too many, one-sided or too far apart.

    Counts are pooled over the pair's prompts: one prompt is too short to hold a share of 1 %.

    Args:
        matches: of one near-tie pair.
        flips: the flips of each match, in the same order.
    """
    broken = _broken_guards(matches, [flip for group in flips for flip in group], limits)
    if not broken:
        return list(matches)
    reason = "; ".join(broken)
    return [
        replace(match, status=RunStatus.DIVERGED, message=f"{match.message}; {reason}".lstrip("; "))
        if match.status is RunStatus.NEAR_TIE or _too_far(match, limits)
        else match
        for match in matches
    ]


def _broken_guards(
    matches: Sequence[TokenMatch], flips: Sequence[Flip], limits: NearTieLimits
) -> list[str]:
    num_positions = sum(len(match.positions) for match in matches)
    allowed = max(1, int(limits.max_flip_share * num_positions))
    allowed_misses = max(1, int((1.0 - limits.min_forced_match_rate) * num_positions + 1e-9))
    broken = []
    if len(flips) > allowed:
        broken.append(f"{len(flips)} flips in {num_positions} positions, {allowed} allowed")
    elif len(flips) > allowed_misses:
        broken.append(
            f"forced top-1 agreement {1 - len(flips) / num_positions:.4f} is below "
            f"{limits.min_forced_match_rate}"
        )
    upwards = sum(flip.candidate_id > flip.oracle_id for flip in flips)
    p_value = sign_test_p(upwards, len(flips))
    if p_value < limits.alpha:
        broken.append(
            f"flips go one way: {upwards} of {len(flips)} to a higher id, p={p_value:.2g}"
        )
    broken += [
        f"{match.prompt}: mean KL {match.mean_kl_nats:.2g} nats over {limits.max_mean_kl_nats:g}"
        for match in matches
        if _too_far(match, limits)
    ]
    return broken


def _too_far(match: TokenMatch, limits: NearTieLimits) -> bool:
    return match.mean_kl_nats is not None and match.mean_kl_nats > limits.max_mean_kl_nats


def _judge(
    pair: TokenPair, z_ref_V: Logits, z_cand_V: Logits, limits: NearTieLimits, noise: float | None
) -> PositionStatus:
    if pair.logit_bound is not None:
        return judge_equal(z_ref_V, z_cand_V, bound=pair.logit_bound)
    if noise is None:
        raise ValueError(f"pair {pair.name!r}: a near-tie judge needs the noise")
    return judge_near_tie(z_ref_V, z_cand_V, noise=noise, max_gap=limits.max_gap)


def _judge_forced(
    pair: TokenPair,
    oracle: Transcript,
    candidate: Transcript,
    limits: NearTieLimits,
    noise: float | None,
) -> list[PositionStatus]:
    return [
        _judge(pair, z_ref_V, z_cand_V, limits, noise)
        for z_ref_V, z_cand_V in zip(oracle.forced_logits, candidate.forced_logits, strict=True)
    ]


def _judge_free(
    positions: list[PositionStatus],
    pair: TokenPair,
    oracle: Transcript,
    candidate: Transcript,
    shared: int,
    limits: NearTieLimits,
    noise: float | None,
) -> None:
    """Worsen positions by what the free runs say on their equal prefix."""
    if pair.strict:
        judged = range(min(shared, len(candidate.generated_logits), len(positions)))
    else:  # equal ids need no excuse; only where the runs part is there a flip to judge
        judged = range(shared - 1, min(shared, len(candidate.generated_logits), len(positions)))
    for position in judged:
        free = _judge(
            pair,
            oracle.generated_logits[position],
            candidate.generated_logits[position],
            limits,
            noise,
        )
        positions[position] = max(positions[position], free, key=_SEVERITY.index)


def _first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    for position, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return position
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _verdict(
    prompt: Prompt,
    positions: Sequence[PositionStatus],
    divergence: int | None,
    oracle: Transcript,
    candidate: Transcript,
) -> tuple[RunStatus, str]:
    diverged = [at for at, status in enumerate(positions) if status is PositionStatus.DIVERGED]
    ties = [at for at, status in enumerate(positions) if status is PositionStatus.NEAR_TIE]
    lengths = (len(oracle.token_ids), len(candidate.token_ids))
    if lengths != (prompt.max_tokens, prompt.max_tokens):
        return RunStatus.DIVERGED, (
            f"oracle generated {lengths[0]} and candidate {lengths[1]} tokens "
            f"where {prompt.max_tokens} were asked for"
        )
    if diverged:
        return RunStatus.DIVERGED, f"diverged at {_listed(diverged)}"
    unexercised = _unexercised(prompt, oracle, candidate)
    if unexercised:
        return RunStatus.VACUOUS, unexercised
    if ties:
        return RunStatus.NEAR_TIE, f"near tie at {_listed(ties)}"
    if divergence is not None:
        return RunStatus.DIVERGED, f"ids differ at {divergence} though no logits do"
    return RunStatus.MATCH, ""


def _unexercised(prompt: Prompt, oracle: Transcript, candidate: Transcript) -> str:
    """Which required fact did not happen on one of the sides; empty where all did."""
    demands = {
        "num_window_wraps": prompt.min_window_wraps,
        "min_blocks_excluded_share": prompt.min_blocks_excluded_share,
    }
    for fact, demand in demands.items():
        for side, transcript in (("oracle", oracle), ("candidate", candidate)):
            found = transcript.facts.get(fact)
            if demand > 0 and (found is None or found < demand):
                said = "is not reported" if found is None else f"is {found:g}"
                return f"{fact} of the {side} {said}, at least {demand:g} makes a verdict"
    return ""


def _max_logit_error(oracle: Transcript, candidate: Transcript, shared: int) -> float:
    errors = [np.abs(_wide(candidate.forced_logits) - _wide(oracle.forced_logits)).max()]
    shared = min(shared, len(oracle.generated_logits), len(candidate.generated_logits))
    if shared:
        ours, theirs = oracle.generated_logits[:shared], candidate.generated_logits[:shared]
        errors.append(np.abs(_wide(theirs) - _wide(ours)).max())
    return float(max(errors))


def _largest_bound(oracle: Transcript, noise: float) -> float:
    return max(logit_bound(noise, float(value)) for value in oracle.forced_logits.max(axis=-1))


def _wide(logits_PV: Logits) -> npt.NDArray[np.float64]:
    return logits_PV.astype(np.float64)


def _all_finite(oracle: Transcript, candidate: Transcript) -> bool:
    """Whether distances exist; positions that are not finite were already judged DIVERGED."""
    arrays = (
        oracle.forced_logits,
        oracle.generated_logits,
        candidate.forced_logits,
        candidate.generated_logits,
    )
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _listed(positions: Sequence[int]) -> str:
    shown = ", ".join(str(position) for position in positions[:5])
    return shown if len(positions) <= 5 else f"{shown} and {len(positions) - 5} more"
