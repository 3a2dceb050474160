"""`neuron-harness tokens` on a real checkpoint, and every way to ask it wrongly."""

from __future__ import annotations

import pytest

from harness.run.store import read_ledger


def only_run(out):
    (run,) = out.iterdir()
    return run


def test_a_pair_that_matches_ends_with_0_and_leaves_records(
    command, checkpoint, token_suite, tmp_path, capsys
):
    out = tmp_path / "runs"
    code = command("tokens", "--suite", token_suite, "--checkpoint", checkpoint, "--out", out)
    assert code == 0
    printed = capsys.readouterr().out
    assert "MATCH     chunks: short 3/3" in printed
    run = only_run(out)
    (record,) = read_ledger(run / "tokens.jsonl").records
    assert record.key == "chunks/short"
    assert record.payload["status"] == "MATCH"
    assert record.payload["prompt_length"] == 5
    assert record.payload["max_logit_error"] <= 1e-9
    (stage,) = read_ledger(run / "stage.jsonl").records
    assert (stage.payload["name"], stage.payload["status"]) == ("tokens", "PASS")
    metrics = {one.key: one.payload for one in read_ledger(run / "metric.jsonl").records}
    assert metrics["tokens.chunks.short.status"]["values"] == ["MATCH"]
    assert metrics["tokens.chunks.short.collectives_per_layer"]["values"] == [0.0]


def test_a_bound_that_is_broken_ends_with_1(command, checkpoint, token_suite, tmp_path, capsys):
    # quantised against exact: another model in all but name
    text = token_suite.read_text().replace(
        'numerics = "exact"\nnum_threads = 1\nmax', 'numerics = "quantised"\nnum_threads = 1\nmax'
    )
    token_suite.write_text(text)
    out = tmp_path / "runs"
    code = command("tokens", "--suite", token_suite, "--checkpoint", checkpoint, "--out", out)
    assert code == 1
    assert "DIVERGED  chunks: short" in capsys.readouterr().out


def test_a_dead_rank_ends_with_5_and_names_it(
    command, checkpoint, token_suite, tmp_path, capsys, monkeypatch
):
    from engine.llm import LLM
    from harness.core.errors import RankError

    def dies(self, *args, **options):
        raise RankError(1, "died with signal 9", "last collective: all_reduce")

    monkeypatch.setattr(LLM, "generate", dies)
    out = tmp_path / "runs"
    code = command("tokens", "--suite", token_suite, "--checkpoint", checkpoint, "--out", out)
    assert code == 5
    assert "CRASH     chunks: short CRASH" in capsys.readouterr().out
    (record,) = read_ledger(only_run(out) / "tokens.jsonl").records
    assert "rank 1 died with signal 9" in record.payload["message"]
    assert record.payload["detail"] == "last collective: all_reduce"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cp", "3"], ["cp=3", "8"]),
        (["--cp", "2,x"], ["--cp '2,x'", "no whole number"]),
        (["--prompt-len", "500"], ["500", "128"]),
        (["--ids", "3,99999"], ["id 99999 at position 1", "512"]),
        (["--ids", "3,5", "--prompt-len", "4"], ["--ids and --prompt-len"]),
        (["--pair", "chunk"], ["--pair 'chunk'", "did you mean chunks"]),
        (["--checkpoint", "nowhere"], ["--checkpoint nowhere", "no such directory"]),
        (["--suite", "tyni"], ["'tyni' is not known", "tiny"]),
    ],
)
def test_a_wrong_request_ends_with_2_and_says_what_is_wrong(
    command, checkpoint, token_suite, tmp_path, capsys, options, said
):
    code = command(
        *("tokens", "--suite", token_suite, "--checkpoint", checkpoint),
        *("--out", tmp_path / "runs", *options),
    )
    assert code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    for part in said:
        assert part in error


def test_an_unwritable_output_directory_ends_with_2_before_any_work(
    command, checkpoint, token_suite, tmp_path, capsys
):
    (tmp_path / "file").write_text("in the way")
    code = command(
        *("tokens", "--suite", token_suite, "--checkpoint", checkpoint),
        *("--out", tmp_path / "file" / "runs"),
    )
    assert code == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_empty_suite_is_vacuous(command, checkpoint, tmp_path, capsys):
    empty = tmp_path / "empty.toml"
    empty.write_text('checkpoint = "tiny-A"\n')
    code = command(
        "tokens", "--suite", empty, "--checkpoint", checkpoint, "--out", tmp_path / "runs"
    )
    assert code == 4
    assert "the suite is empty" in capsys.readouterr().err


def test_a_prompt_that_exercises_too_little_is_vacuous(
    command, checkpoint, token_suite, tmp_path, capsys
):
    token_suite.write_text(
        token_suite.read_text().replace("max_tokens = 3", "max_tokens = 3\nmin_window_wraps = 2")
    )
    out = tmp_path / "runs"
    code = command("tokens", "--suite", token_suite, "--checkpoint", checkpoint, "--out", out)
    assert code == 4
    assert "num_window_wraps of the oracle is 0, at least 2" in capsys.readouterr().out


def test_goldens_are_kept_and_refused_when_damaged(
    command, checkpoint, token_suite, tmp_path, capsys
):
    kept = tmp_path / "goldens"
    again = (
        *("tokens", "--suite", token_suite, "--checkpoint", checkpoint),
        *("--out", tmp_path / "runs", "--goldens", kept),
    )
    assert command(*again) == 0
    (entry,) = kept.iterdir()
    assert command(*again) == 0
    entry.write_bytes(entry.read_bytes()[:100])
    assert command(*again) == 2
    assert "a damaged golden; delete it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["chunks", "batches"])
def test_the_shipped_strict_suites_match(command, checkpoint, tmp_path, capsys, suite):
    code = command("tokens", "--suite", suite, "--checkpoint", checkpoint, "--out", tmp_path)
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.count("MATCH") == 21


@pytest.mark.slow
def test_prompts_at_every_border_are_judged(command, checkpoint, tmp_path):
    suite = tmp_path / "borders.toml"
    suite.write_text(_BORDERS)
    asked = ("tokens", "--suite", suite, "--checkpoint", checkpoint, "--out", tmp_path / "runs")
    assert command(*asked, "--boundaries", "--max-tokens", 2) == 0
    records = read_ledger(only_run(tmp_path / "runs") / "tokens.jsonl").records
    names = {record.payload["prompt_length"]: record.payload["prompt"] for record in records}
    # Window, bucket and candidates of 16, pages of 8, ratio 2, contexts of 24 and 32.
    assert list(names) == [1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 24, 25, 30]
    assert names[17] == "17: window+1, bucket+1, candidates+1"
    assert names[30] == "30: longest"
    assert {record.payload["status"] for record in records} == {"MATCH"}


def test_boundaries_and_a_prompt_of_ones_own_exclude_each_other(command, token_suite, tmp_path):
    asked = ("tokens", "--suite", token_suite, "--out", tmp_path / "runs")
    assert command(*asked, "--boundaries", "--ids", "3,5") == 2
    assert not (tmp_path / "runs").exists()


_BORDERS = """checkpoint = "tiny-A"
[[prompts]]
name = "not judged"
length = 3
max_tokens = 1
[settings.one]
numerics = "quantised"
num_threads = 1
context_buckets = [32]
[settings.buckets]
numerics = "quantised"
num_threads = 1
context_buckets = [24, 32]
[[pairs]]
name = "buckets"
candidate = "buckets"
oracle = "one"
judge = "equal"
logit_bound = 0.0
"""
