"""Engram: token map, primes, multipliers and row ids (model.md §2.9)."""
