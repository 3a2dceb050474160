"""An engine whose requests also tell what the NKI kernels did: instructions and DMA bytes.

The engine knows no kernels and the procedures know neither, so the command line brings the two
together. Kernels of other ranks run in other processes; their counts are not seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.llm import LLM
from harness.core.engine_face import EngineFace, EngineSettings, Generation

__all__ = ["open_counted", "runs_kernels"]

_KERNEL_TABLE = "kernels."
_COUNTED = ("instructions", "dma_bytes")


def runs_kernels(settings: EngineSettings) -> bool:
    """Whether a table of NKI kernels is laid on top."""
    return any(target.startswith(_KERNEL_TABLE) for target in settings.ops)


def open_counted(settings: EngineSettings) -> EngineFace:
    """An `LLM`, with kernel counts where its kernels run in this process."""
    if runs_kernels(settings) and settings.cp == 1:
        return _CountedEngine(settings)
    return LLM(settings)


class _CountedEngine(LLM):
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
