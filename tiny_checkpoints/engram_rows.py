"""How many rows each Engram table has: the prime layout of model.md §2.9."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["engram_primes", "engram_table_rows"]


def engram_primes(
    num_layers: int, max_ngram_size: int, num_heads: int, search_start: int
) -> list[list[list[int]]]:
    """Primes [layer][n-gram order 2..N][head], increasing and never repeated.

    Args:
        num_layers: Engram layers.
        max_ngram_size: N.
        num_heads: hash heads per order.
        search_start: `engram_vocab_size`; primes are taken from here upwards.
    """
    seen: set[int] = set()
    return [
        [_next_primes(search_start, num_heads, seen) for _ in range(2, max_ngram_size + 1)]
        for _ in range(num_layers)
    ]


def engram_table_rows(primes: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    """Rows per Engram layer: the sum of that layer's primes."""
    return [sum(sum(order) for order in layer) for layer in primes]


def _next_primes(start: int, count: int, seen: set[int]) -> list[int]:
    found: list[int] = []
    candidate = start
    while len(found) < count:
        if candidate not in seen and _is_prime(candidate):
            seen.add(candidate)
            found.append(candidate)
        candidate += 1
    return found


def _is_prime(number: int) -> bool:
    if number < 4:
        return number in (2, 3)
    if number % 2 == 0 or number % 3 == 0:
        return False
    divisor = 5
    while divisor * divisor <= number:
        if number % divisor == 0 or number % (divisor + 2) == 0:
            return False
        divisor += 6
    return True
