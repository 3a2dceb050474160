"""The primes that size an engram layer's tables."""

from __future__ import annotations

from functools import cache

from engine.config.model import EngramConfig

__all__ = ["engram_primes"]

# The first 13 primes decide primality of every number below 3.3e24 (deterministic Miller-Rabin).
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


def engram_primes(engram: EngramConfig) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Primes by layer, order 2..max_ngram and head.

    Each order starts after vocab_size - 1 and takes the next primes no earlier order or layer
    has taken, so primes never repeat.
    """
    return _primes(len(engram.layer_ids), engram.max_ngram - 1, engram.num_heads, engram.vocab_size)


@cache
def _primes(
    num_layers: int, num_orders: int, num_heads: int, start: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    # All orders start at the same number and skip what is taken: one ascending stream.
    stream = _ascending_primes(start - 1, num_layers * num_orders * num_heads)
    rows = [stream[at : at + num_heads] for at in range(0, len(stream), num_heads)]
    return tuple(
        tuple(tuple(row) for row in rows[layer * num_orders : (layer + 1) * num_orders])
        for layer in range(num_layers)
    )


def _ascending_primes(after: int, count: int) -> list[int]:
    found: list[int] = []
    number = after
    while len(found) < count:
        number += 1
        if _is_prime(number):
            found.append(number)
    return found


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    for witness in _WITNESSES:
        if number % witness == 0:
            return number == witness
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, odd, twos, witness) for witness in _WITNESSES)


def _passes(number: int, odd: int, twos: int, witness: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
