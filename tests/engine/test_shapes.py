"""The meta-device layout tells of a configuration what a real run of it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM
from engine.config.limits import resolve_limits
from engine.config.parse import load_model_config, parse_model_config
from engine.shapes.inventory import condensed, least_step_bytes, step_bytes
from engine.shapes.meta_ops import TABLE
from engine.shapes.plan import lay_out
from harness.core.engine_face import EngineSettings
from harness.core.numerics import numerics_named
from harness.core.ops import OP_SHEET
from tests.engine.oracle import settings

_REAL_CONFIG = Path(__file__).parents[2] / "engine" / "configs" / "deepseek_v4_1_flash.json"


def _report(cp: int, numerics: str, ep: int = 0) -> Any:
    chosen = settings("steady_mtp", cp=cp, ep=ep, numerics=numerics)
    config = load_model_config(chosen.checkpoint)
    return lay_out(config, resolve_limits(chosen, config), numerics_named(numerics), cp, ep)


@pytest.mark.parametrize(
    ("cp", "ep", "numerics"),
    [(1, 0, "exact"), (2, 0, "fast"), (4, 4, "quantised"), (1, 2, "exact"), (2, 4, "fast")],
)
def test_launches_and_collectives_are_those_of_a_real_step(cp: int, ep: int, numerics: str) -> None:
    decode, prefill = _report(cp, numerics, ep).steps
    with LLM.in_one_process(settings("steady_mtp", cp=cp, ep=ep, numerics=numerics)) as llm:
        (one,) = llm.generate([[5, 6, 7]], max_tokens=2)
        (first,) = llm.generate([[5, 6, 7]], max_tokens=1)
    assert (decode.launches, decode.collectives) == (
        one.counters["launches"],
        one.counters["collectives"],
    )
    assert (prefill.launches, prefill.collectives) == (
        first.counters["launches"],
        first.counters["collectives"],
    )


def test_tensors_of_a_rank_are_those_a_real_rank_holds() -> None:
    from engine.shapes.inventory import tensor_shapes

    laid_out = {shape.name: shape for shape in _report(1, "fast").tensors}
    with LLM(settings("steady_mtp", numerics="fast")) as llm:
        executor: Any = llm.executor
        loaded = tensor_shapes(executor.worker.weights)
    assert len(loaded) > 200
    for shape in loaded:
        assert laid_out[shape.name] == shape


def test_batches_of_their_own_divide_the_routed_experts_alone() -> None:
    whole, ranks = _report(1, "fast"), _report(1, "fast", ep=4)
    by_name = {shape.name: shape for shape in whole.tensors}
    divided = {
        shape.name: by_name[shape.name].num_bytes / shape.num_bytes
        for shape in ranks.tensors
        if shape.num_bytes != by_name[shape.name].num_bytes
    }
    assert set(divided.values()) == {4.0}
    assert all(".moe.w" in name for name in divided)
    assert ranks.num_ranks == 4
    assert ranks.collectives_per_layer == 2
    # Four rows of four batches visit more experts than one row does.
    assert ranks.least_step_bytes == pytest.approx(ranks.step_bytes)


@pytest.mark.slow
def test_the_published_configuration_lies_evenly_on_sixty_four_batches() -> None:
    config = parse_model_config(_REAL_CONFIG)
    limits = resolve_limits(EngineSettings(str(_REAL_CONFIG.parent), ep=64), config)
    report = lay_out(config, limits, numerics_named("trn2"), 1, 64)
    shapes = {shape.name: shape.shape for shape in report.tensors}
    assert shapes["blocks.0.moe.w13.codes"][0] == 6  # of 384 experts
    assert len(set(report.resident_bytes)) == 1
    # 40 layers of one packed gather and one scatter; everything else is whole on a rank.
    assert [step.collectives for step in report.steps] == [80, 80]
    assert report.step_bytes == pytest.approx(report.least_step_bytes)


def test_every_op_of_the_sheet_has_a_shape_rule() -> None:
    assert set(TABLE.ops) == set(OP_SHEET)


def test_the_least_possible_bytes_are_those_of_a_perfect_division() -> None:
    report, whole = _report(4, "quantised"), _report(1, "quantised")
    config = load_model_config(settings().checkpoint)
    one = step_bytes(config, whole.tensors, 1)
    assert least_step_bytes(config, whole.tensors, 1, 1) == pytest.approx(one)
    assert report.least_step_bytes < one
    # Everything divides here; only the embedding's row is looked up on every rank.
    embed_row = 2 * config.hidden_size
    assert report.step_bytes - report.least_step_bytes == pytest.approx(0.75 * embed_row)


def test_equal_tensors_of_many_layers_are_one_row() -> None:
    rows = {(name, layers) for name, layers, _ in condensed(_report(1, "fast").tensors)}
    assert ("blocks.*.attn_norm", "0-7") in rows
    assert ("blocks.*.attention.compressor.wgate", "2") in rows
    assert ("blocks.*.attention.indexer.weights_proj", "2,4,6") in rows
