"""What a prompt launches on either path, counted without weights and on a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM
from engine.config.parse import load_model_config, parse_model_config
from engine.shapes.prompt import PREFILL_PATHS, PromptCost, prompt_costs
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.numerics import numerics_named
from tests.engine.oracle import all_ids, settings

REAL_CONFIG = Path(__file__).parents[2] / "engine" / "configs" / "deepseek_v4_1_flash.json"


def _costs(prompt_len: int, numerics: str = "quantised", **changes: Any) -> tuple[PromptCost, ...]:
    chosen = settings("long", numerics=numerics, **changes)
    config = load_model_config(chosen.checkpoint)
    return prompt_costs(config, chosen, numerics_named(numerics), prompt_len)


@pytest.mark.parametrize("prompt_len", [1, 37])
@pytest.mark.parametrize("changes", [{}, {"cp": 2}, {"max_num_batched_tokens": 20}], ids=str)
def test_the_counts_are_those_of_a_real_prompt(prompt_len: int, changes: dict[str, int]) -> None:
    prompt = all_ids("long", "exact")[:prompt_len]
    for cost in _costs(prompt_len, **changes):
        chosen = settings("long", numerics="quantised", prefill=cost.prefill, **changes)
        with LLM.in_one_process(chosen) as llm:
            (one,) = llm.generate([prompt], max_tokens=1)
        assert cost.launches == one.counters["prefill_launches"]
        assert cost.num_steps == one.num_prefill_steps == len(one.steps)
        padding = sum(step.padded_rows - step.num_rows for step in one.steps)
        assert cost.num_padding == padding


def test_the_paths_are_those_of_the_settings() -> None:
    assert [cost.prefill for cost in _costs(5)] == list(PREFILL_PATHS)
    with pytest.raises(UsageError, match="prompt_len=128: it is at least 1"):
        _costs(128)
    with pytest.raises(UsageError, match="prompt_len=0"):
        _costs(0)


@pytest.mark.slow
def test_a_prompt_of_8192_takes_a_quarter_of_the_launches_on_64_ranks() -> None:
    config = parse_model_config(REAL_CONFIG)
    chosen = EngineSettings("x", cp=64, numerics="fast")
    as_decode, attention = prompt_costs(config, chosen, numerics_named("fast"), 8192)
    assert (as_decode.num_steps, attention.num_steps) == (64, 16)
    assert (as_decode.num_padding, attention.num_padding) == (0, 0)
    # Steps without a row for logits save three launches and a collective.
    assert as_decode.launches + 63 * 3 == 4 * (attention.launches + 15 * 3)
    assert as_decode.collectives + 63 == 4 * (attention.collectives + 15)
    assert as_decode.launches / attention.launches == pytest.approx(4, rel=1e-3)
