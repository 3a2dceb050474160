"""Random numbers that are the same bits on every machine.

Only raw words of a counter-based bit generator, integer sums, and + - × ÷ sqrt in fp64: no log,
no cosine, no library distribution, whose last bits differ between platforms and versions.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

__all__ = ["near_normals", "permutation", "raw_words", "signs", "uniforms"]

_NUM_LANES = 8  # 16-bit uniforms summed for one near-normal value: bounded by 4.9 sigma
_LANE_SPAN = 1 << 16
_LANE_SUM_MEAN = _NUM_LANES * (_LANE_SPAN - 1) / 2.0
# A uniform integer on 0..65535 has variance (65536² - 1) / 12.
_LANE_SUM_SIGMA = math.sqrt(_NUM_LANES * (_LANE_SPAN * _LANE_SPAN - 1) / 12.0)


def raw_words(stream: str, num_words: int) -> npt.NDArray[np.uint64]:
    """The first `num_words` 64-bit words of the Philox stream called `stream`.

    The key is the head of the name's SHA-256, so a tensor's values depend on its name and the
    variant's seed alone, not on the order in which tensors are drawn.
    """
    digest = hashlib.sha256(stream.encode()).digest()
    key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return np.random.Philox(key=key).random_raw(num_words)


def near_normals(stream: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Mean 0, variance 1: centred sums of eight 16-bit uniforms."""
    count = math.prod(shape)
    words = raw_words(stream, 2 * count).astype("<u8")
    lanes = words.view("<u2").reshape(_NUM_LANES, count)
    sums = lanes.sum(axis=0, dtype=np.uint32).astype(np.float64)
    values: npt.NDArray[np.float64] = (sums - _LANE_SUM_MEAN) / _LANE_SUM_SIGMA
    return values.reshape(shape)


def uniforms(stream: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Uniform on (-1, 1), 52 bits, never an end point."""
    words = raw_words(stream, math.prod(shape)) >> np.uint64(12)
    return ((words.astype(np.float64) + 0.5) / float(1 << 51) - 1.0).reshape(shape)


def signs(stream: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """+1 or -1 with equal chance."""
    words = raw_words(stream, math.prod(shape)) >> np.uint64(63)
    return (1.0 - 2.0 * words.astype(np.float64)).reshape(shape)


def permutation(stream: str, length: int) -> npt.NDArray[np.int64]:
    """A permutation of range(length): the order of raw words, ties by position."""
    return np.argsort(raw_words(stream, length), kind="stable").astype(np.int64)
