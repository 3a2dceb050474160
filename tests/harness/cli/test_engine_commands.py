"""`logits`, `generate` and `shapes` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.errors import ExitCode

_ROOT = Path(__file__).parents[3]
_CHECKPOINT = _ROOT / "tests" / "data" / "oracle" / "steady_mtp"
_REAL_CONFIG = _ROOT / "engine" / "configs" / "deepseek_v4_1_flash.json"


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def _vectors() -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    with np.load(_CHECKPOINT.with_name("steady_mtp_exact.npz")) as archive:
        return {key: archive[key] for key in archive.files}


def test_logits_writes_the_official_logits_of_every_position(tmp_path: Path) -> None:
    vectors = _vectors()
    out = tmp_path / "logits.npz"
    ids = ",".join(map(str, vectors["ids"].tolist()))
    assert _run("logits", "--checkpoint", _CHECKPOINT, "--ids", ids, "--cp", 2, "--out", out) == 0
    with np.load(out) as written:
        assert written["ids"].tolist() == vectors["ids"].tolist()
        assert written["logits"].dtype == np.float32
        assert np.abs(written["logits"] - vectors["logits"][:40]).max() <= 1e-4
    assert [file.name for file in tmp_path.iterdir()] == ["logits.npz"]


def test_logits_of_a_prompt_beyond_the_default_length(tmp_path: Path) -> None:
    out = tmp_path / "logits.npz"
    ids = ",".join(["5"] * 130)
    assert _run("logits", "--checkpoint", _CHECKPOINT, "--ids", ids, "--out", out) == 0
    with np.load(out) as written:
        assert written["logits"].shape == (130, 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--ids": "5,512"}, "prompt[1] is 512"),
        ({"--ids": "5,x"}, "'x' is no whole number"),
        ({"--cp": "3"}, "cp=3 does not divide num_attention_heads=4"),
        ({"--numerics": "sharp"}, "'sharp' is not known"),
        ({"--out": "/proc/none/logits.npz"}, "cannot be written"),
        ({"--out": "logits.txt"}, "must end in .npz"),
        ({"--checkpoint": "/nowhere"}, "give an existing directory"),
    ],
)
def test_logits_refuses_what_it_cannot_do(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    message: str,
) -> None:
    options = {
        "--checkpoint": str(_CHECKPOINT),
        "--ids": "5,6",
        "--out": str(tmp_path / "logits.npz"),
        **changes,
    }
    arguments = [text for pair in options.items() for text in pair]
    assert _run("logits", *arguments) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_generate_says_what_it_did_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    vectors = _vectors()
    ids = ",".join(map(str, vectors["ids"].tolist()))
    code = _run(
        "generate", "--model_name", _CHECKPOINT, "--ids", ids, "--numerics", "exact",
        "--max_tokens", 12, "--max_model_len", 96, "--num_kv_blocks", 12,
        "--max_num_batched_tokens", 16, "--ignore-eos", "--json",
    )  # fmt: skip
    assert code == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["token_ids"] == vectors["generated"].tolist()
    assert facts["finish_reason"] == "length"
    assert facts["prompt_tokens"] == 40
    assert facts["num_prefill_steps"] == 3
    assert facts["ttft_ms"] > 0
    assert facts["tpot_ms"] > 0
    assert facts["text"] is None


def _generated(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    code = _run(
        "generate", "--model_name", _CHECKPOINT, "--ids", "3,5,7,9", "--numerics", "exact",
        "--max_tokens", 6, "--ignore-eos", "--json", *options,
    )  # fmt: skip
    assert code == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_generate_samples_by_its_seed_and_tells_log_probabilities(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampled = ("--temperature", 1.5, "--top-p", 0.95, "--top_k", 20, "--seed", 4)
    greedy = _generated(capsys, "--logprobs", 2)
    one = _generated(capsys, *sampled, "--logprobs", 2)
    again = _generated(capsys, *sampled, "--prefill", "attention")
    assert one["token_ids"] == again["token_ids"] != greedy["token_ids"]
    assert "logprobs" not in again
    for token, entry in zip(greedy["token_ids"], greedy["logprobs"], strict=True):
        assert entry["token_id"] == token == entry["top"][0][0]
        assert entry["logprob"] == entry["top"][0][1] > entry["top"][1][1]
    assert all(entry["logprob"] < 0 for entry in one["logprobs"])


def test_generate_tells_the_acceptance_of_drafts_by_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = _generated(capsys, "--speculative", "dspark", "--temperature", 0.5)
    shares = facts["acceptance_by_place"]
    # Six tokens leave room for four drafts at most: one token comes before, one with them.
    assert len(shares) == 4
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= share <= 1 for share in shares)
    assert 1 + sum(shares) == pytest.approx(facts["acceptance"])
    assert _generated(capsys)["acceptance_by_place"] is None


def test_generate_tells_the_shape_of_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    facts = _generated(capsys, "--prefill", "attention")
    assert facts["steps"] == [
        {"count": 1, "num_rows": 4, "padded_rows": 16, "context": 64, "path": "prefill"},
        {"count": 5, "num_rows": 1, "padded_rows": 1, "context": 64, "path": "decode"},
    ]
    assert facts["counters"]["prefill_launches"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", "-1"), "temperature=-1.0: it is finite and at least 0"),
        (("--top-p", "0"), "top_p=0.0"),
        (("--top-k", "-2"), "top_k=-2"),
        (("--prefill", "flash"), "choose 'as-decode' or 'attention'"),
    ],
)
def test_generate_refuses_sampling_that_means_nothing(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _run("generate", "--checkpoint", _CHECKPOINT, "--ids", "5", *options)
    assert code == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_generate_needs_one_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("generate", "--checkpoint", _CHECKPOINT, "--prompt", "hi") == ExitCode.USAGE
    assert "tokenizer.json is 'absent'" in capsys.readouterr().err
    both = ("--ids", "5", "--prompt", "hi")
    assert _run("generate", "--checkpoint", _CHECKPOINT, *both) == ExitCode.USAGE
    assert "give one" in capsys.readouterr().err


def test_shapes_of_the_real_configuration_over_64_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--config", _REAL_CONFIG, "--cp", 64, "--ep", 64, "--json")
    assert _run("shapes", *arguments) == 0
    report = json.loads(capsys.readouterr().out)
    shapes = {tensor["name"]: tensor["shape"] for tensor in report["tensors"]}
    assert shapes["blocks.0.attention.wq_b.codes"] == [512, 1280]  # one head
    assert shapes["blocks.0.attention.wo_a.codes"] == [1024, 512]  # an eighth of a group
    assert shapes["blocks.0.attention.wo_b.codes"] == [5120, 128]
    assert shapes["blocks.0.moe.w13.codes"] == [6, 4608, 2560]  # six experts
    assert shapes["embed"] == [2020, 5120]
    assert report["collectives_per_layer"] == 3
    assert [step["collectives"] for step in report["steps"]] == [122, 122]
    assert report["step_bytes"] <= 1.2 * report["least_step_bytes"]
    assert len(report["resident_bytes"]) == 64


def test_shapes_of_one_rank_hold_the_audited_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """model.md §0: 474.34 GiB of text tensors; the images' bias of each router is not loaded."""
    assert _run("shapes", "--config", _REAL_CONFIG, "--json") == 0
    (num_bytes,) = json.loads(capsys.readouterr().out)["resident_bytes"]
    bias_vl = 4 * (40 * 384 + 3 * 128)
    assert (num_bytes + bias_vl) / 2**30 == pytest.approx(474.337, abs=5e-4)


def test_shapes_prints_a_table_and_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("shapes", "--config", _CHECKPOINT / "config.json", "--cp", 2) == 0
    printed = capsys.readouterr().out
    assert "blocks.*.attention.wq_b.codes" in printed
    assert "collectives per layer        2" in printed
    assert "weight bytes per decode step" in printed


def test_shapes_counts_what_a_prompt_launches_on_either_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = _CHECKPOINT / "config.json"
    assert _run("shapes", "--config", config, "--prompt-len", 48, "--json") == 0
    as_decode, attention = json.loads(capsys.readouterr().out)["prompts"]
    assert (as_decode["prefill"], attention["prefill"]) == ("as-decode", "attention")
    assert (as_decode["num_steps"], attention["num_steps"]) == (3, 1)
    # Two of three steps choose no token: norm, head and argmax are left out.
    assert as_decode["launches"] == 3 * attention["launches"] - 2 * 3
    assert _run("shapes", "--config", config, "--prompt-len", 48) == 0
    shown = capsys.readouterr().out
    assert f"prompt of 48, attention      {attention['launches']} kernel launches" in shown
    assert _run("shapes", "--config", config, "--prompt-len", 500) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cp", 48), "choose one of 1, 2, 4, 8, 16, 32, 64"),
        (("--cp", 64, "--ep", 32), "ep=32 with cp=64"),
    ],
)
def test_shapes_fails_on_what_cannot_be_laid_out(
    capsys: pytest.CaptureFixture[str], options: tuple[object, ...], message: str
) -> None:
    assert _run("shapes", "--config", _REAL_CONFIG, *options) == ExitCode.USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--ids", "--prompt"])
def test_an_empty_prompt_is_refused_and_not_replaced(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert _run("generate", "--checkpoint", _CHECKPOINT, option, "") == ExitCode.USAGE
    assert f"{option} is empty" in capsys.readouterr().err


def test_a_prompt_that_is_not_utf8_is_refused(
    capsys: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    prompt = b"\xff".decode("utf-8", "surrogateescape")
    assert _run("generate", "--checkpoint", checkpoint, "--prompt", prompt) == ExitCode.USAGE
    assert "it is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--ids", "5,512"), "give ids of this checkpoint's tokenizer"),
        (("--ids", "5,6,7", "--max-model-len", 2), "shorten the prompt"),
    ],
)
def test_a_prompt_that_does_not_fit_is_answered_with_a_remedy(
    capsys: pytest.CaptureFixture[str], options: tuple[object, ...], remedy: str
) -> None:
    assert _run("generate", "--checkpoint", _CHECKPOINT, *options) == ExitCode.USAGE
    assert remedy in capsys.readouterr().err
