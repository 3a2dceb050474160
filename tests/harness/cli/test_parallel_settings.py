"""`--cp 1 --ep N` and `--moe-capacity` through the commands that run the engine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from harness.run.store import read_ledger


def payloads(out, name):
    (ledger,) = out.glob(f"*/{name}.jsonl")
    return [one.payload for one in read_ledger(ledger).records]


def test_tokens_judges_batches_of_their_own_against_one_rank(command, checkpoint, tmp_path, capsys):
    code = command(
        *("tokens", "--ep", "2", "--moe-capacity", 2, "--prompt-len", 9, "--max-tokens", 2),
        *("--checkpoint", checkpoint, "--out", tmp_path),
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert "MATCH     exact-cp1-ep2-capacity2: drawn 2/2" in printed
    assert "MATCH     quantised-cp1-ep2-capacity2: drawn 2/2" in printed
    assert all(one["max_logit_error"] <= 1e-9 for one in payloads(tmp_path, "tokens"))


def test_a_sweep_keeps_how_often_experts_overflowed(command, checkpoint, sweep_spec, tmp_path):
    code = command(
        *("sweep", "--spec", sweep_spec, "--checkpoint", checkpoint, "--out", tmp_path),
        *("--input-len", 8, "--ep", "2", "--concurrency", 2, "--moe-capacity", 1),
    )
    assert code == 0
    (point,) = payloads(tmp_path, "sweep")
    assert (point["config"]["ep"], point["config"]["moe_capacity"]) == (2, 1)
    # 2 x 8 rows on 8 experts with one slot each: all ten layers of both repeats run again.
    assert point["counters"]["moe_dense_reruns"] == 2 * 10
    assert point["counters"]["moe_overflows"] >= 2 * 10
    assert point["counters"]["collectives"] == 2 * 10
    assert len(point["requests"]) == 2 * 2


def test_the_port_s_matrix_gives_every_rank_a_prompt_of_its_own(command, checkpoint, tmp_path):
    code = command(
        *("bench_neuron", "--model_name", checkpoint, "--ep", 2, "--cp", 1, "--out", tmp_path),
        *("--input_len", 4, "--output_len", 2, "--repeats", 1, "--numerics", "exact"),
    )
    assert code == 0
    (point,) = payloads(tmp_path, "sweep")
    assert (point["config"]["concurrency"], len(point["requests"])) == (2, 2)
    # Prompts of one batch would have run in one step of 8 rows.
    assert [one["padding_share"] for one in point["requests"]] == [0.75, 0.75]


def test_the_port_s_variable_sets_the_capacity(
    command, checkpoint, capsys, monkeypatch: pytest.MonkeyPatch
):
    arguments = ("generate", "--checkpoint", checkpoint, "--ids", "3,5,7,9,11", "--max-tokens", 2)
    monkeypatch.setenv("DEEPINFER_NEURON_MOE_CAPACITY", "1")
    assert command(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["counters"]["moe_dense_reruns"] > 0
    assert command(*arguments, "--json", "--moe-capacity", 16) == 0
    assert json.loads(capsys.readouterr().out)["counters"]["moe_dense_reruns"] == 0


def test_logits_of_batches_of_their_own_are_those_of_one_rank(command, checkpoint, tmp_path):
    for name, options in (("one", ()), ("two", ("--ep", 2, "--moe-capacity", 1))):
        code = command(
            *("logits", "--checkpoint", checkpoint, "--ids", "3,5,7,9", *options),
            *("--out", tmp_path / f"{name}.npz"),
        )
        assert code == 0
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        assert np.array_equal(one["logits"], two["logits"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cp", 2, "--ep", 3), "ep=3 with cp=2"),
        (("--cp", 3, "--ep", 6), "cp=3 does not divide num_attention_heads=8"),
        (("--moe-capacity", -1), "moe_capacity=-1"),
    ],
)
def test_what_cannot_be_is_refused_with_2(command, checkpoint, capsys, options, said):
    arguments = ("generate", "--checkpoint", checkpoint, "--ids", "3", *options)
    assert command(*arguments) == 2
    assert said in capsys.readouterr().err
