"""The region graphs of a matrix, compiled on the CPU before it is measured.

Every engine of the matrix runs each of its points once, as compiled regions; what is compiled on
the way stays on disk (engine.graphs.graph_store), where the measurement finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UsageError

if TYPE_CHECKING:
    from harness.core.engine_face import EngineSettings
    from harness.core.sweep_spec import SweepSpec

__all__ = ["CompiledEngine", "compile_regions"]

_FIRST_ID = 3  # after the special tokens


@dataclass(frozen=True, slots=True)
class CompiledEngine:
    """One engine of the matrix.

    Attributes:
        num_graphs: regions by kind and bucket that its points met.
        num_compiled: those of them that were not on disk.
    """

    label: str
    num_graphs: int
    num_compiled: int


def compile_regions(
    spec: SweepSpec, checkpoint: Path, compile_backend: str
) -> Iterator[CompiledEngine]:
    """Compile what each engine of the matrix needs, one after another.

    Raises:
        UsageError: an engine of the matrix is for a device, whose own compiler keeps its graphs.
        MissingEvidenceError: inductor has no C++ compiler here.
    """
    for eager in spec.settings(str(checkpoint)):
        if eager.device != "cpu":
            raise UsageError("regions are compiled here for the CPU: leave device out of --matrix")
        settings = replace(eager, enforce_eager=False, compile_backend=compile_backend)
        yield _compiled(settings, spec)


def _compiled(settings: EngineSettings, spec: SweepSpec) -> CompiledEngine:
    from engine.llm import LLM

    num_graphs = 0
    with LLM(settings) as llm:
        for input_len in spec.input_lens:
            if input_len + max(spec.all_output_lens) > llm.limits.max_model_len:
                continue  # a sweep leaves this point out too
            prompt = [
                _FIRST_ID + place % (llm.vocab_size - _FIRST_ID) for place in range(input_len)
            ]
            for number in sorted({1, *spec.all_concurrencies}):
                answers = llm.generate([prompt] * number, max_tokens=max(spec.all_output_lens))
                num_graphs = max(num_graphs, *(round(one.counters["graphs"]) for one in answers))
        num_compiled = round(llm.totals["compile_events"])
    return CompiledEngine(settings.label, num_graphs, num_compiled)
