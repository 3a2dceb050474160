"""Bisecting a fault whose layer and op are known."""

import pytest

import harness.cli.fault_cases as fault_cases
from harness.cli.bisect import bisect_settings
from harness.cli.engine_capture import capture_prompt
from harness.cli.engine_faults import ENGINE_FAULTS
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.op_table import OpTable
from harness.core.token_suite import Prompt
from harness.run.bisect import OpCall
from references.op_table import TABLE as REFERENCES

PROMPT = Prompt("bisect", 1, length=20, seed=3)


def _mean_pool(kv, gate, ratio, *, numerics):
    return REFERENCES.ops["compress_pool"](kv, gate * 0, ratio, numerics=numerics)


MEAN_POOL = OpTable({"compress_pool": _mean_pool})


def settings(checkpoint, **options):
    return EngineSettings(str(checkpoint), num_threads=1, **{"numerics": "exact", **options})


def test_a_wrong_op_is_found_in_the_first_layer_that_uses_it(command, checkpoint, capsys):
    code = command(
        *("bisect", "--pair", "exact-cp2", "--checkpoint", checkpoint, "--prompt-len", 20),
        *("--candidate-ops", "tests.harness.cli.test_bisect:MEAN_POOL"),
    )
    assert code == 1
    # Layer 2 is the first kv source of ratio 2 in tiny-A.
    assert "first: layer 2, compress_pool #0: error 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "options", "call"),
    [
        ("wrong expert shard", {"cp": 2}, OpCall(0, "linear_fp4_grouped", 0)),
        ("window off by one", {"token_bucket": 16}, OpCall(0, "sparse_attention", 0)),
    ],
)
def test_a_fault_of_the_engine_is_found(checkpoint, monkeypatch, fault, options, call):
    oracle, candidate = settings(checkpoint), settings(checkpoint, **options)
    right = fault_cases.open_sound

    def opened(asked):
        engine = right(asked)
        if asked == candidate:
            ENGINE_FAULTS[fault](engine)
        return engine

    # The noise of cp=1 is cp=2, which must stay sound: the candidate alone has 16 rows a step.
    if options == {"cp": 2}:
        candidate = settings(checkpoint, cp=2, token_bucket=16)
    monkeypatch.setattr(fault_cases, "open_sound", opened)
    found = bisect_settings(oracle, candidate, PROMPT)
    assert (found.layer, found.call) == (call.layer, call)
    assert found.calls[call].noise < 1e-14


def test_partitions_and_chunks_that_agree_do_not_part(command, checkpoint, capsys):
    oracle = settings(checkpoint)
    for options in ({"cp": 2, "token_bucket": 16}, {"max_num_batched_tokens": 7}):
        found = bisect_settings(oracle, settings(checkpoint, **options), PROMPT)
        assert not found.parts
        assert len(found.layers) == 10
        assert max(one.error for one in found.layers.values()) < 1e-12


@pytest.mark.parametrize("pair", ["graphs", "inductor-exact"])
def test_compiled_regions_are_refused_before_anything_runs(command, checkpoint, capsys, pair):
    options = ("--suite", "compiled", "--checkpoint", checkpoint, "--prompt-len", 5)
    assert command("bisect", *options, "--pair", pair) == 2
    told = capsys.readouterr()
    assert "whose ops nobody hears: choose settings with enforce_eager" in " ".join(
        told.err.split()
    )
    assert "layer" not in told.out, "no table of nothing"


def test_an_engine_of_compiled_regions_is_not_captured(checkpoint):
    chosen = settings(checkpoint, enforce_eager=False, compile_backend="aten")
    with (
        fault_cases.open_sound(chosen) as engine,
        pytest.raises(UsageError, match="compiled aten' runs layers as compiled regions"),
    ):
        capture_prompt(engine, [3, 4, 5])


def test_an_unknown_pair_is_refused_by_name(command, checkpoint, capsys):
    assert command("bisect", "--pair", "kernel", "--checkpoint", checkpoint) == 2
    assert "kernels" in capsys.readouterr().err
