"""A slice holds the source's bytes under new names, is a model, and is whole or absent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine import LLM
from harness.cli.session import parse_ranges
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError, UsageError
from tiny_checkpoints import slicing
from tiny_checkpoints.inspection import inspect_checkpoint
from tiny_checkpoints.slice_plan import plan_slice
from tiny_checkpoints.slicing import slice_checkpoint

_REAL_CONFIG = Path(__file__).parents[2] / "engine" / "configs" / "deepseek_v4_1_flash.json"
_LAYERS, _EXPERTS = (0, 1, 2, 3, 6), (1, 2, 5)


def _read(directory: Path, name: str) -> torch.Tensor:
    """By the safetensors library, bytes as they are."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    with safe_open(directory / index["weight_map"][name], framework="pt") as file:
        tensor = file.get_tensor(name)
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def test_tensors_are_the_source_s_under_their_new_names(tiny_a: Path, tmp_path: Path) -> None:
    slice_checkpoint(tiny_a, tmp_path / "cut", _LAYERS, _EXPERTS)
    for new, old in enumerate(_LAYERS):
        for rest in ("attn.wq_b.weight", "attn.wq_b.scale", "hc_attn_fn", "attn.attn_sink"):
            cut = _read(tmp_path / "cut", f"layers.{new}.{rest}")
            assert torch.equal(cut, _read(tiny_a, f"layers.{old}.{rest}"))
        for place, expert in enumerate(_EXPERTS):
            for part in ("w1.weight", "w2.scale"):
                cut = _read(tmp_path / "cut", f"layers.{new}.ffn.experts.{place}.{part}")
                assert torch.equal(cut, _read(tiny_a, f"layers.{old}.ffn.experts.{expert}.{part}"))
        for part in ("gate.weight", "gate.bias"):
            cut = _read(tmp_path / "cut", f"layers.{new}.ffn.{part}")
            assert torch.equal(cut, _read(tiny_a, f"layers.{old}.ffn.{part}")[list(_EXPERTS)])
    assert torch.equal(_read(tmp_path / "cut", "head.weight"), _read(tiny_a, "head.weight"))


def test_ids_in_the_configuration_follow_their_layers(tiny_a: Path, tmp_path: Path) -> None:
    done = slice_checkpoint(tiny_a, tmp_path / "cut", _LAYERS, _EXPERTS)
    text = json.loads((tmp_path / "cut" / "config.json").read_text())["text_config"]
    assert text["compress_ratios"] == [0, 0, 2, 2, 1]
    assert text["kv_source_layer_ids"] == text["index_source_layer_ids"] == [2, 4]
    assert (text["candidate_source_layer_id"], text["engram_layer_ids"]) == (4, [1])
    assert (text["n_routed_experts"], text["num_hidden_layers"]) == (3, 5)
    assert text["num_nextn_predict_layers"] == 0
    assert "draft stages are left out" in done.notices[0]


def test_keeping_everything_gives_the_same_model(tiny_a: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    slice_checkpoint(tiny_a, whole, range(10), range(8))
    tokens = []
    for place in (tiny_a, whole):
        with LLM(EngineSettings(str(place), numerics="exact", num_threads=1)) as llm:
            tokens.append(llm.generate([[1, 2, 3]], max_tokens=3)[0].token_ids)
    assert tokens[0] == tokens[1]


def test_a_slice_generates(tiny_a: Path, tmp_path: Path) -> None:
    slice_checkpoint(tiny_a, tmp_path / "cut", _LAYERS, _EXPERTS)
    with LLM(EngineSettings(str(tmp_path / "cut"), num_threads=1)) as llm:
        assert len(llm.generate([[1, 2, 3]], max_tokens=2)[0].token_ids) == 2


def test_cut_engram_tables_keep_the_first_rows_of_each_section(
    tiny_a: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    slice_checkpoint(tiny_a, cut, (0, 4, 5, 6), (0, 1), engram_vocab_size=32)
    source, table = (
        _read(place, f"layers.{layer}.engram.embed.weight")
        for place, layer in ((tiny_a, 4), (cut, 1))
    )
    # Sections of tiny-A's second Engram layer: the 7th to 12th prime from 64 on; the slice's six
    # are the first from 32 on.
    old, new = (97, 101, 103, 107, 109, 113), (37, 41, 43, 47, 53, 59)
    first, rows = 0, []
    for old_rows, new_rows in zip(old, new, strict=True):
        rows += range(first, first + new_rows)
        first += old_rows
    assert first == source.shape[0]
    assert torch.equal(table, source[rows])
    inspect_checkpoint(cut)


@pytest.mark.parametrize(
    ("layers", "experts", "message"),
    [
        ((0, 5), (0, 1), "reads the cache of layer 4: keep 4 too"),
        ((0, 6, 9), (0, 1), "reads the indices of layer 8"),
        ((0, 1), (0, 1), "keeps no index source"),
        ((0, 4), (0, 1), "keep those too, or cut the tables with --engram-vocab-size"),
        ((2, 3), (4,), "a token needs 2"),
        ((2, 11), (0, 1), r"11 is outside 0\.\.9"),
        ((), (0, 1), "name at least one id"),
    ],
)
def test_what_would_be_no_model_is_refused_with_the_reason(
    tiny_a: Path, tmp_path: Path, layers: tuple[int, ...], experts: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        slice_checkpoint(tiny_a, tmp_path / "cut", layers, experts)
    assert list(tmp_path.iterdir()) == []


def test_the_published_model_s_slice_is_planned_without_its_weights() -> None:
    config = json.loads(_REAL_CONFIG.read_text())
    plan = plan_slice(config, _REAL_CONFIG, (0, 1, 2, 3, 14, 20), range(16))
    text = plan.config["text_config"]
    assert text["compress_ratios"] == [0, 0, 2, 2, 2, 1]
    assert text["kv_source_layer_ids"] == [2, 4, 5]
    assert text["engram_layer_ids"] == [1, 4]
    assert text["engram_num_embeddings"] == [384006168, 384016682]
    assert plan.source_of("layers.5.ffn.experts.15.w3.scale")[0] == (
        "layers.20.ffn.experts.15.w3.scale"
    )


def test_an_existing_destination_is_not_touched(tiny_a: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        slice_checkpoint(tiny_a, tmp_path / "kept", _LAYERS, _EXPERTS)
    assert (tmp_path / "kept").read_text() == "mine"


def test_a_damaged_source_is_named_and_nothing_is_left(own_tiny_a: Path, tmp_path: Path) -> None:
    shard = own_tiny_a / "model-00004-of-00017.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InputError, match="model-00004-of-00017"):
        slice_checkpoint(own_tiny_a, tmp_path / "cut", _LAYERS, _EXPERTS)
    assert not (tmp_path / "cut").exists()


def test_a_disk_that_is_too_small_is_told_before_a_byte_is_written(
    tiny_a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        slicing.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 20})
    )
    with pytest.raises(UsageError, match=r"0\.0 GiB are free"):
        slice_checkpoint(tiny_a, tmp_path / "cut", _LAYERS, _EXPERTS)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_slice_leaves_no_checkpoint_and_its_rest_is_cleared(
    tiny_a: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tiny_checkpoints.slicing import slice_checkpoint\n"
        "slice_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), (0, 1, 2, 3, 6), (0, 1),"
        " progress=lambda done, total: (print('at work', flush=True), time.sleep(30)))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tiny_a), str(tmp_path / "cut")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "at work\n"
    child.kill()
    child.wait()
    child.stdout.close()
    assert not (tmp_path / "cut").exists()
    assert [path.name for path in tmp_path.iterdir()] == [f".cut.partial-{child.pid}"]
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    slice_checkpoint(tiny_a, tmp_path / "cut", _LAYERS, _EXPERTS)
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]


def test_ranges_are_read_as_typed() -> None:
    assert parse_ranges("0-3,14,20", "--layers") == (0, 1, 2, 3, 14, 20)
    for wrong in ("3-0", "a", "1-", ""):
        with pytest.raises(UsageError, match="--layers"):
            parse_ranges(wrong, "--layers")
