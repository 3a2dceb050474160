"""The prime layout against the published primes and row totals (model.md §2.9 and §6)."""

from __future__ import annotations

from tiny_checkpoints.engram_rows import engram_primes, engram_table_rows


def test_tiny_primes_and_rows() -> None:
    primes = engram_primes(2, 4, 2, 64)
    assert primes == [
        [[67, 71], [73, 79], [83, 89]],
        [[97, 101], [103, 107], [109, 113]],
    ]
    assert engram_table_rows(primes) == [462, 630]


def test_real_primes_and_rows() -> None:
    primes = engram_primes(2, 4, 8, 16_000_000)
    assert primes[0][0] == [16000000 + tail for tail in (57, 79, 81, 97, 121, 129, 133, 183)]
    assert primes[1][2][-1] == 16000889
    assert engram_table_rows(primes) == [384_006_168, 384_016_682]


def test_a_prime_search_start_is_itself_taken() -> None:
    assert engram_primes(1, 2, 3, 2) == [[[2, 3, 5]]]
