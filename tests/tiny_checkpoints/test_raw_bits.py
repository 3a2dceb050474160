"""Random words against Philox written out here, and what is made of them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tiny_checkpoints.raw_bits import near_normals, permutation, raw_words, signs, uniforms

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def _philox_4x64(counter: int, key: tuple[int, int]) -> list[int]:
    """Ten rounds of Philox-4x64 (Salmon et al. 2011)."""
    c = [(counter >> (64 * place)) & _MASK for place in range(4)]
    k0, k1 = key
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * c[0], _MULTIPLIERS[1] * c[2]
        c = [(second >> 64) ^ c[1] ^ k0, second & _MASK, (first >> 64) ^ c[3] ^ k1, first & _MASK]
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c


def test_the_philox_written_here_gives_the_published_answer() -> None:
    assert _philox_4x64(0, (0, 0)) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


@pytest.mark.parametrize("name", ["1/embed.weight", "2/layers.0.attn.wq_a"])
def test_raw_words_are_philox_under_the_digest_of_the_name(name: str) -> None:
    digest = hashlib.sha256(name.encode()).digest()
    key = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))
    # numpy counts from 1: it advances before it draws.
    expected = [word for block in range(1, 4) for word in _philox_4x64(block, key)]
    assert raw_words(name, 12).tolist() == expected


def test_a_longer_draw_starts_with_the_shorter_one() -> None:
    assert raw_words("x", 100)[:7].tolist() == raw_words("x", 7).tolist()


def test_near_normals_are_centred_scaled_and_bounded() -> None:
    values = near_normals("moments", (400, 500))
    assert values.shape == (400, 500)
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(1.0, abs=0.01)
    # Eight summed uniforms: kurtosis 3 - 1.2/8.
    assert (values**4).mean() == pytest.approx(2.85, abs=0.05)
    assert np.abs(values).max() < 4.9


def test_near_normals_equal_sums_of_sixteen_bit_lanes() -> None:
    words = [int(word) for word in raw_words("lanes", 6)]
    lanes = [(word >> (16 * place)) & 0xFFFF for word in words for place in range(4)]
    sums = [sum(lanes[value::3]) for value in range(3)]
    sigma = (8 * (65536**2 - 1) / 12) ** 0.5
    expected = [(total - 4 * 65535) / sigma for total in sums]
    assert near_normals("lanes", (3,)).tolist() == expected


def test_uniforms_stay_inside_and_signs_are_balanced() -> None:
    values = uniforms("u", (10000,))
    assert -1 < values.min() < -0.99
    assert 0.99 < values.max() < 1
    assert abs(signs("s", (10000,)).sum()) < 400
    assert set(signs("s", (50,)).tolist()) == {1.0, -1.0}


def test_a_permutation_holds_every_number_once() -> None:
    assert sorted(permutation("p", 512).tolist()) == list(range(512))
    assert permutation("p", 512).tolist() != permutation("q", 512).tolist()
