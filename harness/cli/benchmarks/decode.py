"""Decode speed of the engine on the tiny checkpoint."""

from __future__ import annotations

import statistics
from pathlib import Path

from harness.cli.benchmarks.measurement import Figure
from harness.core.engine_face import EngineSettings, Generation

__all__ = ["decode_figures"]


def decode_figures(checkpoint: Path) -> list[Figure]:
    """Tokens per second at cp=1, batch 1, after a warm-up, for each numerics mode."""
    from engine.llm import LLM

    figures = []
    for numerics in ("exact", "quantised", "fast"):
        with LLM(EngineSettings(str(checkpoint), numerics=numerics, num_threads=1)) as engine:
            prompt = [[(7 * index) % engine.vocab_size for index in range(1, 33)]]
            engine.generate(prompt, max_tokens=4)
            runs = [engine.generate(prompt, max_tokens=33)[0] for _ in range(3)]
        rate = statistics.median(_tokens_per_second(run) for run in runs)
        figures.append(Figure(f"decode, tiny-a, {numerics}, cp=1", rate, "tokens/s"))
    return figures


def _tokens_per_second(run: Generation) -> float:
    span_ns = run.token_ns[-1] - run.token_ns[0]
    return (len(run.token_ns) - 1) * 1e9 / span_ns
