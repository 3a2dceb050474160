"""How the command line opens engines: threads that fit, and the counts of the NKI kernels.

The engine knows no kernels and the procedures know neither, so the command line brings the two
together. Kernels of other ranks run in other processes; their counts are not seen here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.llm import LLM
from harness.core.engine_face import EngineFace, EngineSettings, Generation
from harness.core.errors import RankError

__all__ = ["TellingLLM", "fitting_threads", "open_engine", "runs_kernels"]

_KERNEL_TABLE = "kernels."
# Below this size a thread's share of a matrix is so small that the barriers cost more than the
# second core gains: measured on tiny-A, two threads are slower alone and 20 times slower beside
# another process.
_SMALL_CHECKPOINT_BYTES = 1 << 30
_COUNTED = ("instructions", "dma_bytes")


def runs_kernels(settings: EngineSettings) -> bool:
    """Whether a table of NKI kernels is laid on top."""
    return any(target.startswith(_KERNEL_TABLE) for target in settings.ops)


def open_engine(settings: EngineSettings) -> EngineFace:
    """An `LLM`, with kernel counts where its kernels run in this process."""
    if not settings.num_threads:
        settings = replace(settings, num_threads=fitting_threads(settings))
    if runs_kernels(settings) and settings.num_ranks == 1:
        return _CountedEngine(settings)
    return TellingLLM(settings)


def fitting_threads(settings: EngineSettings) -> int:
    """Threads of each rank: its share of the cores, one for a small checkpoint."""
    shards = Path(settings.checkpoint).glob("*.safetensors")
    if sum(shard.stat().st_size for shard in shards) < _SMALL_CHECKPOINT_BYTES:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // settings.num_ranks)


class TellingLLM(LLM):
    """Says how many tokens there were when a rank failed."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        on_token: Callable[[int, int], object] | None = None,
        **options: Any,
    ) -> list[Generation]:
        counts = [0] * len(prompts)

        def tell(index: int, token: int) -> None:
            counts[index] += 1
            if on_token is not None:
                on_token(index, token)

        try:
            return super().generate(prompts, on_token=tell, **options)
        except RankError as error:
            error.num_tokens = min(counts)
            raise


class _CountedEngine(TellingLLM):
    """Counts one request at a time: `<count>_per_request` for a batch of one."""

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Generation]:
        from kernels.launch import counters, reset_counters

        reset_counters()
        generations = super().generate(prompts, **options)
        if len(generations) != 1:
            return generations
        counted = counters().as_mapping()
        return [
            replace(
                generations[0],
                counters={
                    **generations[0].counters,
                    **{f"{name}_per_request": counted[name] for name in _COUNTED},
                },
            )
        ]
