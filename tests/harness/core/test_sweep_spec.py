"""Points in order, keys by the whole configuration, pruning with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.sweep_spec import SweepSpec, point_key

SPEC = SweepSpec("s", (16, 120), 16, cps=(1, 2), numerics=("fast", "exact"))


def test_points_come_setting_by_setting_with_the_lengths_within() -> None:
    order = [(p.settings.numerics, p.settings.cp, p.input_len) for p in SPEC.points("dir", "id")]
    assert order == [
        (mode, cp, length) for mode in ("fast", "exact") for cp in (1, 2) for length in (16, 120)
    ]
    assert len(SPEC.settings("dir")) == 4


def test_a_point_beyond_the_model_length_is_pruned_with_the_numbers() -> None:
    pruned = {p.input_len: p.pruned for p in SPEC.points("dir", "id", max_model_len=135)}
    assert pruned == {16: "", 120: "input 120 + output 16 = 136 tokens, over max_model_len 135"}
    own = replace(SPEC, engine={"max_model_len": 136})
    assert not any(p.pruned for p in own.points("dir", "id", max_model_len=100))


def test_a_key_follows_everything_but_the_place_and_the_patience() -> None:
    (first, *_) = SPEC.points("dir", "id")
    assert first.key == point_key(first.config) == SPEC.points("elsewhere", "id")[0].key
    assert len(first.key) == 16
    assert set(first.key) <= set("0123456789abcdef")
    changes: list[dict[str, Any]] = [
        {"output_len": 17},
        {"seed": 1},
        {"num_repeats": 4},
        {"num_warmups": 2},
        {"ignore_eos": False},
        {"engine": {"page_size": 16}},
        {"ops": (("a:B",),)},
        {"prefills": ("attention",)},
    ]
    keys = {replace(SPEC, **change).points("dir", "id")[0].key for change in changes}
    keys |= {first.key, SPEC.points("dir", "other")[0].key}
    assert len(keys) == len(changes) + 2
    patient = replace(SPEC, engine={"time_limit_s": 9.0}).points("dir", "id")[0]
    assert patient.key == first.key
    assert patient.settings.time_limit_s == 9.0


def test_fields_younger_than_the_first_records_change_no_old_key() -> None:
    (plain, *_) = SPEC.points("dir", "id")
    assert not {"prefill", "enforce_eager", "moe_capacity"} & set(plain.config)


def test_both_prefill_paths_are_settings_of_their_own() -> None:
    points = replace(SPEC, prefills=("as-decode", "attention")).points("dir", "id")
    assert len(points) == 2 * len(SPEC.points("dir", "id"))
    assert [p.settings.prefill for p in points[::8]] == ["as-decode", "attention"]
    assert points[8].config["prefill"] == "attention"


def test_all_keys_of_a_sweep_differ() -> None:
    keys = [point.key for point in SPEC.points("dir", "id")]
    assert len(set(keys)) == len(keys) == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_lens": ()}, "input_lens is empty"),
        ({"cps": (1, 1)}, "cps repeats a value"),
        ({"input_lens": (0,)}, "at least 1"),
        ({"output_len": 0}, "at least 1"),
        ({"num_repeats": 0}, "at least 1"),
        ({"concurrency": 2}, "num_warmups=1 must be at least concurrency=2"),
        ({"engine": {"cp": 2}}, "engine field 'cp' is not one of"),
        ({"engine": {"prefill": "attention"}}, "engine field 'prefill' is not one of"),
    ],
)
def test_an_impossible_sweep_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(SPEC, **fields)


def test_a_setting_that_the_engine_refuses_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of exact"):
        replace(SPEC, numerics=("slow",)).settings("dir")
