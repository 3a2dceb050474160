"""When a flipped greedy token is a near tie, and when it is wrong (measurement.md §2).

Pure arithmetic on logits: z_ref of the oracle and z_cand of the candidate on the same prefix.
The noise N is measured between runs that do not involve the candidate. A bound taken from the
candidate's own error would accept every flip, since both gaps of a flip are at most twice that
error.

Shapes: P positions, V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.core.status import PositionStatus

__all__ = [
    "NOISE_PERCENTILE",
    "bf16_ulp",
    "judge_equal",
    "judge_near_tie",
    "logit_bound",
    "mean_kl_nats",
    "noise_of",
    "tie_width",
    "top1_margins",
]

Logits = npt.NDArray[np.floating]

NOISE_PERCENTILE = 99.0
_BF16_FRACTION_BITS = 7
_BF16_MIN_EXPONENT = -126


def bf16_ulp(value: float) -> float:
    """Distance between neighbouring bf16 numbers at |value|.

    Raises:
        ValueError: `value` is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} has no ULP")
    exponent = _BF16_MIN_EXPONENT if value == 0.0 else math.frexp(abs(value))[1] - 1
    return math.ldexp(1.0, max(exponent, _BF16_MIN_EXPONENT) - _BF16_FRACTION_BITS)


def noise_of(pairs: list[tuple[Logits, Logits]]) -> float:
    """N: 99th percentile over positions of max_v |dz| between runs without the candidate.

    Args:
        pairs: logits [P, V] of the oracle setting and of the same sums in another order, one
            entry a prompt; their positions are pooled.

    Raises:
        ValueError: no position, or a difference that is not finite.
    """
    largest = [_position_errors(ours, theirs) for ours, theirs in pairs]
    pooled = np.concatenate(largest) if largest else np.empty(0)
    if pooled.size == 0:
        raise ValueError("noise over no position")
    if not np.isfinite(pooled).all():
        raise ValueError("the noise runs hold logits that are not finite")
    return float(np.percentile(pooled, NOISE_PERCENTILE))


def logit_bound(noise: float, reference_logit: float) -> float:
    """2N + 2 ULP_bf16(|z_ref[a]|): how far any logit may be from the oracle's at a near tie."""
    return 2.0 * noise + 2.0 * bf16_ulp(reference_logit)


def tie_width(noise: float, reference_logit: float, max_gap: float) -> float:
    """tau = min(2N + 2 ULP_bf16(|z_ref[a]|), max_gap)."""
    return min(logit_bound(noise, reference_logit), max_gap)


def judge_near_tie(
    z_ref_V: Logits,
    z_cand_V: Logits,
    *,
    noise: float,
    max_gap: float,
) -> PositionStatus:
    """Judge one position: a flip a -> b passes only as a near tie.

    Args:
        z_ref_V, z_cand_V: logits on the same prefix.
        noise: N.
        max_gap: upper end of tau, in logits.
    """
    if not (np.isfinite(z_ref_V).all() and np.isfinite(z_cand_V).all()):
        return PositionStatus.DIVERGED
    a = int(np.argmax(z_ref_V))
    b = int(np.argmax(z_cand_V))
    if a == b:
        return PositionStatus.MATCH
    z_ref, z_cand = z_ref_V.astype(np.float64), z_cand_V.astype(np.float64)
    width = tie_width(noise, float(z_ref[a]), max_gap)
    near = (
        z_ref[a] - z_ref[b] <= width
        and z_cand[b] - z_cand[a] <= width
        and float(np.abs(z_cand - z_ref).max()) <= logit_bound(noise, float(z_ref[a]))
    )
    return PositionStatus.NEAR_TIE if near else PositionStatus.DIVERGED


def judge_equal(z_ref_V: Logits, z_cand_V: Logits, *, bound: float) -> PositionStatus:
    """Judge one position where no near tie exists: same argmax, logits within `bound`.

    A bound of 0 demands equal values; a value that is not finite never matches.
    """
    if not (np.isfinite(z_ref_V).all() and np.isfinite(z_cand_V).all()):
        return PositionStatus.DIVERGED
    same_id = int(np.argmax(z_ref_V)) == int(np.argmax(z_cand_V))
    within = float(np.abs(z_cand_V.astype(np.float64) - z_ref_V.astype(np.float64)).max()) <= bound
    return PositionStatus.MATCH if same_id and within else PositionStatus.DIVERGED


def mean_kl_nats(z_ref_PV: Logits, z_cand_PV: Logits) -> float:
    """Mean over positions of KL(softmax(z_ref) || softmax(z_cand)), in nats."""
    reference = _log_softmax(z_ref_PV.astype(np.float64))
    candidate = _log_softmax(z_cand_PV.astype(np.float64))
    per_position = (np.exp(reference) * (reference - candidate)).sum(axis=-1)
    return float(per_position.mean())


def top1_margins(z_PV: Logits) -> tuple[float, ...]:
    """Gap between the largest and the second largest logit of each position."""
    top_two = np.sort(np.partition(z_PV.astype(np.float64), -2, axis=-1)[:, -2:], axis=-1)
    return tuple(float(gap) for gap in top_two[:, 1] - top_two[:, 0])


def _position_errors(z_ref_PV: Logits, z_cand_PV: Logits) -> npt.NDArray[np.float64]:
    difference = z_cand_PV.astype(np.float64) - z_ref_PV.astype(np.float64)
    errors: npt.NDArray[np.float64] = np.abs(difference).max(axis=-1)
    return errors


def _log_softmax(z_PV: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = z_PV - z_PV.max(axis=-1, keepdims=True)
    logs: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs
