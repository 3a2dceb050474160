"""The port's variables stand for engine settings."""

from __future__ import annotations

import pytest

from engine.environment import with_environment
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError


def test_variables_fill_what_was_left_open() -> None:
    found = with_environment(
        EngineSettings("x"),
        {
            "DEEPINFER_ACCELERATOR": "neuron",
            "DEEPINFER_NEURON_PREFILL_BUCKET": "64",
            "DEEPINFER_NEURON_CTX_BUCKETS": "2048,4096",
            "DEEPINFER_NEURON_NUM_KV_BLOCKS": "160",
            "DEEPINFER_NEURON_MOE_CAPACITY": "64",
            "DEEPINFER_ENFORCE_EAGER": "0",
        },
    )
    assert (found.device, found.token_bucket) == ("neuron", 64)
    assert (found.context_buckets, found.num_kv_blocks) == ((2048, 4096), 160)
    assert (found.moe_capacity, found.enforce_eager) == (64, False)


def test_an_option_wins_over_its_variable() -> None:
    settings = EngineSettings("x", num_kv_blocks=20)
    found = with_environment(settings, {"DEEPINFER_NEURON_NUM_KV_BLOCKS": "160"})
    assert found.num_kv_blocks == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEURON_NUM_KV_BLOCKS", "many"),
        ("ENFORCE_EAGER", "no"),
        ("NEURON_LOCAL_RANK", "3"),
        ("NEURON_MOE_CAPACITY", "ample"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"DEEPINFER_{name}"):
        with_environment(EngineSettings("x"), {f"DEEPINFER_{name}": value})
