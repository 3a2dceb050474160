"""Token, sweep and gate suites that ship, and their readers on wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.engine_face import REFERENCE_OPS
from harness.core.errors import InputError, UsageError, VacuousError
from suites.loader import (
    list_suites,
    load_gate_suite,
    load_sweep_suite,
    load_token_suite,
)

KERNEL_OPS = (*REFERENCE_OPS, "kernels.op_table:TABLE")


def test_the_demo_compares_cp_strictly_and_kernels_by_near_ties() -> None:
    suite = load_token_suite("tiny")
    pairs = {pair.name: pair for pair in suite.pairs}
    for mode in ("exact", "quantised"):
        for cp in (2, 4):
            pair = pairs[f"{mode}-cp{cp}"]
            assert (pair.candidate.numerics, pair.candidate.cp) == (mode, cp)
            assert (pair.oracle.numerics, pair.oracle.cp) == (mode, 1)
            assert pair.strict
            assert pair.logit_bound == 1e-9
    kernels = pairs["kernels"]
    assert not kernels.strict
    assert kernels.candidate.ops == KERNEL_OPS
    assert kernels.oracle.ops == REFERENCE_OPS
    assert kernels.candidate.fp8_max == kernels.oracle.fp8_max == 240
    assert [noise.ops for noise in kernels.noise] == [REFERENCE_OPS]


def test_the_long_prompt_exercises_windows_and_candidates() -> None:
    prompts = {prompt.name: prompt for prompt in load_token_suite("tiny").prompts}
    long = prompts["long"]
    assert long.num_tokens >= 96
    assert long.max_tokens >= 32
    assert long.min_window_wraps >= 2
    assert long.min_blocks_excluded_share >= 0.5
    assert long.num_tokens + long.max_tokens <= 128  # the default max_model_len
    assert prompts["short"].num_tokens < 16


def test_chunk_pairs_demand_the_same_bits_in_quantised() -> None:
    pairs = load_token_suite("chunks").pairs
    chunks = {p.candidate.max_num_batched_tokens for p in pairs if p.logit_bound == 0.0}
    assert chunks == {1, 2, 3, 7, 64}
    assert all(p.candidate.numerics == "quantised" for p in pairs if p.logit_bound == 0.0)


def test_prefill_pairs_cross_every_axis_with_the_prefill_path() -> None:
    pairs = load_token_suite("prefill").pairs
    assert {pair.candidate.prefill for pair in pairs} == {"attention"}
    assert {pair.oracle.prefill for pair in pairs} == {"as-decode"}
    assert {pair.candidate.max_num_batched_tokens for pair in pairs} == {0, 11, 24, 128}
    assert {pair.candidate.speculative for pair in pairs} == {"", "dspark"}
    assert {pair.candidate.cp for pair in pairs} == {1, 2}
    assert {pair.batch for pair in pairs} == {1, 2, 4}
    assert all(pair.logit_bound == 0.0 for pair in pairs if pair.oracle.numerics == "quantised")


def test_settings_are_listed_once_in_the_order_needed() -> None:
    suite = load_token_suite("tiny").at("some/checkpoint")
    settings = suite.settings
    assert len(settings) == len(set(settings)) == 9
    assert settings[0] == suite.pairs[0].oracle
    assert {item.checkpoint for item in settings} == {"some/checkpoint"}


def test_the_demo_sweep_covers_lengths_and_ranks_within_the_context() -> None:
    spec = load_sweep_suite("tiny")
    points = spec.points("c", "id", max_model_len=128)
    assert len(points) == len(spec.input_lens) * len(spec.cps) == 12
    assert not any(point.pruned for point in points)
    assert spec.cps == (1, 2, 4)
    assert spec.ignore_eos


def test_the_port_sweep_is_the_published_matrix() -> None:
    spec = load_sweep_suite("port")
    assert spec.input_lens == (512, 1024, 2048, 8192)
    assert spec.output_len == 128
    (settings,) = spec.settings("c")
    assert (settings.cp, settings.ep, settings.max_model_len) == (64, 64, 8448)
    assert settings.num_kv_blocks == 160
    assert settings.ops == KERNEL_OPS


def test_gates_name_metrics_that_their_sweep_makes() -> None:
    for name in ("tiny", "port"):
        spec = load_sweep_suite(name)
        made = {
            f"in={length}.out={spec.output_len}.{kind}"
            for length in spec.input_lens
            for kind in ("ttft_ms", "tpot_ms")
        }
        for metric in load_gate_suite(name).primary:
            assert metric.name.partition(".in=")[1:] != ("", "")
            assert "in=" + metric.name.partition(".in=")[2] in made
    assert not load_gate_suite("tiny").timing_counts
    assert load_gate_suite("tiny").gates_exactly("parity.rms_norm/T2-d32/bfloat16/s0.status")


def test_every_listed_suite_loads() -> None:
    loaders = {
        "tokens": load_token_suite,
        "sweeps": load_sweep_suite,
        "gates": load_gate_suite,
    }
    for kind, load in loaders.items():
        for name in list_suites(kind):
            assert load(name).name == name


TOKENS = """
checkpoint = "tiny-A"
[[prompts]]
name = "p"
length = 4
max_tokens = 2
[settings.a]
numerics = "exact"
[settings.b]
numerics = "exact"
cp = 2
[[pairs]]
name = "x"
candidate = "b"
oracle = "a"
judge = "equal"
logit_bound = 1e-9
"""


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ('candidate = "b"', 'candidate = "c"', "pairs[0].candidate", "unknown setting"),
        ('candidate = "b"', 'candidate = "a"', "pairs[0]", "the same setting"),
        ('judge = "equal"', 'judge = "near"', "pairs[0]", "'equal' or 'near_tie'"),
        ("logit_bound = 1e-9", "", "pairs[0]", "has a logit_bound"),
        ("logit_bound = 1e-9", 'logit_bound = 1.0\nnoise = ["a"]', "pairs[0]", "has noise"),
        ("cp = 2", "cp = 0", "settings.b", "cp is at least 1"),
        ("cp = 2", "cpp = 2", "settings.b.cpp", "did you mean cp"),
        ("cp = 2", 'cp = "2"', "settings.b.cp", "an integer"),
        ("cp = 2", "fp8_max = 250", "settings.b", "choose 240, 448 or 0"),
        ('numerics = "exact"\ncp', 'numerics = "exakt"\ncp', "settings.b", "choose one of exact"),
        ("length = 4", "length = 4\nids = [1]", "prompts[0]", "not both"),
        ("length = 4", "lenght = 4", "prompts[0].lenght", "did you mean length"),
        ("max_tokens = 2", "max_tokens = 0", "prompts[0]", "at least one token"),
        ('checkpoint = "tiny-A"', "", "checkpoint", "add the key"),
        ("[[prompts]]", "[limits]\nalpa = 1\n[[prompts]]", "limits.alpa", "did you mean alpha"),
    ],
)
def test_a_wrong_token_file_is_refused_by_key(
    tmp_path: Path, old: str, new: str, field: str, message: str
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(TOKENS.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        load_token_suite(path)
    assert caught.value.field == field


def test_repeated_names_and_empty_suites_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(TOKENS + '[[prompts]]\nname = "p"\nlength = 5\nmax_tokens = 1\n')
    with pytest.raises(InputError, match="prompt 'p' occurs twice"):
        load_token_suite(path)
    path.write_text('checkpoint = "tiny-A"\n')
    with pytest.raises(VacuousError, match="the suite is empty"):
        load_token_suite(path)
    with pytest.raises(UsageError, match="token suite 'tinny' is not known; did you mean tiny"):
        load_token_suite("tinny")


SWEEP = "input_lens = [4, 8]\noutput_len = 2\n"


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("output_len = 2\n", "input_lens", "add the key"),
        (SWEEP + "cps = [1, 1]\n", "", "repeats a value"),
        (SWEEP + "cp = [1]\n", "cp", "did you mean cps"),
        (SWEEP + "num_warmups = 0\n", "", "num_warmups"),
        (SWEEP + 'numerics = ["quick"]\n', "", "choose one of exact"),
        (SWEEP + "ops = ['a:B']\n", "ops", "a list of lists"),
        (SWEEP + "[engine]\ncp = 2\n", "", "engine field 'cp' is not one of"),
        (SWEEP + "[engine]\npage = 2\n", "engine.page", "did you mean page_size"),
    ],
)
def test_a_wrong_sweep_file_is_refused_by_key(
    tmp_path: Path, text: str, field: str, message: str
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_sweep_suite(path)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_pairs = 10\n", "judges nothing"),
        ('deterministic = ["*"]\nmin_pair = 3\n', "did you mean min_pairs"),
        ('[[primary]]\nname = "a.*"\nfloor = 1\n', "named exactly"),
        ('[[primary]]\nname = "a"\n', "add the key"),
        ("".join(f'[[primary]]\nname = "m{i}"\nfloor = 1\n' for i in range(9)), "at most 8"),
        ('[[primary]]\nname = "a"\nfloor = 1\n' * 2, "twice"),
    ],
)
def test_a_wrong_gate_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "g.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_gate_suite(path)
