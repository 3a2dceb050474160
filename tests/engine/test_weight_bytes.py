"""What a rank reads: its shard at loading, and little more than the least possible in a step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from engine.config.limits import resolve_limits
from engine.config.model import ModelConfig
from engine.config.parse import load_model_config, parse_model_config
from engine.shapes.inventory import tensor_shapes
from engine.shapes.plan import lay_out
from engine.weights.checkpoint import Checkpoint, MetaCheckpoint, Span
from engine.weights.layout import RankLayout
from engine.weights.load import WeightLoader
from harness.core.engine_face import EngineSettings
from harness.core.numerics import numerics_named
from tests.engine.oracle import directory, settings

_REAL = "engine/configs/deepseek_v4_1_flash.json"


class _Counted(Checkpoint):
    """Counts the bytes of every tensor that is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(directory(name))
        self.num_bytes: Counter[str] = Counter()

    def read(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        *,
        rows: Span | None = None,
        columns: Span | None = None,
    ) -> torch.Tensor:
        part = super().read(name, dtype, shape, rows=rows, columns=columns)
        self.num_bytes[name] += part.numel() * part.element_size()
        return part


def _loaded(config: ModelConfig, rank: int, size: int) -> Counter[str]:
    files = _Counted("steady_mtp")
    layout = RankLayout(config, numerics_named("quantised"), rank, size)
    WeightLoader(files, layout).load()
    return files.num_bytes


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_reads_its_shard_and_nothing_else(size: int) -> None:
    config = load_model_config(directory("steady_mtp"))
    whole = _loaded(config, 0, 1)
    ranks = [_loaded(config, rank, size) for rank in range(size)]
    for rank, read in enumerate(ranks):
        layout = RankLayout(config, numerics_named("quantised"), rank, size)
        held = tensor_shapes(WeightLoader(MetaCheckpoint(), layout).load())
        assert read.total() == sum(shape.num_bytes for shape in held)
    for name, num_bytes in whole.items():
        parts = [read[name] for read in ranks]
        # Divided without overlap or gap, or the same on every rank; `fast` alone has ranks of one
        # output group read its columns of wo_b twice, for one collective less.
        assert sum(parts) == num_bytes or set(parts) == {num_bytes}, name
    assert max(read.total() for read in ranks) < whole.total()


def _real() -> ModelConfig:
    from importlib.resources import files

    return parse_model_config(files("engine") / "configs" / "deepseek_v4_1_flash.json")  # type: ignore[arg-type]


@pytest.mark.parametrize(("cp", "ep"), [(64, 64), (1, 64)])
def test_a_step_reads_at_most_a_fifth_more_than_the_least_possible(cp: int, ep: int) -> None:
    config = _real()
    limits = resolve_limits(EngineSettings(_REAL, cp=cp, ep=ep, max_model_len=8448), config)
    report = lay_out(config, limits, numerics_named("trn2"), cp, ep)
    assert report.least_step_bytes <= report.step_bytes <= 1.2 * report.least_step_bytes
    assert report.replicated_step_bytes < report.least_step_bytes


def test_what_ranks_read_alike_does_not_depend_on_how_many_they_are() -> None:
    config = load_model_config(directory("steady_mtp"))
    limits = resolve_limits(settings(), config)
    two, four = (lay_out(config, limits, numerics_named("fast"), cp, cp) for cp in (2, 4))
    assert two.replicated_step_bytes == four.replicated_step_bytes > 0
    divided = [report.least_step_bytes - report.replicated_step_bytes for report in (two, four)]
    assert divided[0] == pytest.approx(2 * divided[1])
