"""Reading safetensors: shards, slices, and damaged files with clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine import LLM
from engine.weights.checkpoint import Checkpoint
from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError
from tests.engine.oracle import all_ids, copied_checkpoint, directory, settings


def _tensors(name: str) -> dict[str, torch.Tensor]:
    with safe_open(str(directory(name) / "model.safetensors"), framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping


def _shard(checkpoint: Path, edit: dict[str, torch.Tensor] | None = None) -> list[Path]:
    """Split a copied checkpoint into two shards with an index."""
    tensors = {**_tensors(checkpoint.name), **(edit or {})}
    names = sorted(tensors)
    shards = [checkpoint / f"model-0000{part + 1}-of-00002.safetensors" for part in range(2)]
    weight_map = {}
    for part, shard in enumerate(shards):
        own = names[part::2]
        save_file({name: tensors[name] for name in own}, str(shard))
        weight_map.update(dict.fromkeys(own, shard.name))
    (checkpoint / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    return shards


def _open(checkpoint: Path) -> None:
    with LLM(EngineSettings(str(checkpoint), numerics="exact", num_threads=1)):
        raise AssertionError("this checkpoint must not load")


def test_shards_with_an_index_give_the_same_logits_as_one_file(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    _shard(copy)
    ids = all_ids("steady_mtp", "exact")[:12]
    with LLM(settings("steady_mtp")) as llm:
        single = llm.score(ids)
    with LLM(EngineSettings(str(copy), numerics="exact", num_threads=1)) as llm:
        assert (llm.score(ids) == single).all()


def test_slices_are_the_rows_and_columns_of_the_whole() -> None:
    source = Checkpoint(directory("steady_mtp"))
    whole = source.read("layers.0.attn.wo_b.weight", "F8_E4M3", (256, 128))
    part = source.read(
        "layers.0.attn.wo_b.weight", "F8_E4M3", (256, 128), rows=(32, 96), columns=(64, 128)
    )
    assert whole.dtype == torch.uint8
    assert torch.equal(part, whole[32:96, 64:128])


def test_an_optional_bias_for_images_is_tolerated_and_ignored(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    extra = {f"layers.{layer}.ffn.gate.bias_vl": torch.full((8,), 9.0) for layer in range(8)}
    _shard(copy, extra)
    ids = all_ids("steady_mtp", "exact")[:6]
    with LLM(settings("steady_mtp")) as llm:
        expected = llm.score(ids)
    with LLM(EngineSettings(str(copy), numerics="exact", num_threads=1)) as llm:
        assert (llm.score(ids) == expected).all()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    shards = _shard(copy)
    shards[1].unlink()
    with pytest.raises(InputError, match="copy the missing shard") as caught:
        _open(copy)
    assert caught.value.file == str(shards[1])


def test_a_truncated_shard_is_named_with_its_size(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    shards = _shard(copy)
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="truncated") as caught:
        _open(copy)
    assert caught.value.file == str(shards[0])
    assert caught.value.value == len(content) // 2


def test_a_wrong_shape_names_tensor_and_both_shapes(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    _shard(copy, {"layers.3.attn.attn_sink": torch.zeros(5)})
    with pytest.raises(InputError, match=r"attn_sink is \[5\]: config.json implies \[4\]"):
        _open(copy)


def test_a_wrong_dtype_names_tensor_and_both_dtypes(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    _shard(copy, {"layers.3.attn.attn_sink": torch.zeros(4, dtype=torch.bfloat16)})
    message = "dtype of layers.3.attn.attn_sink is 'BF16': dtype F32 is needed"
    with pytest.raises(InputError, match=message):
        _open(copy)


def test_an_absent_tensor_is_named(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    _shard(copy)
    index = copy / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    del values["weight_map"]["layers.5.ffn.experts.3.w2.scale"]
    index.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"tensor layers.5.ffn.experts.3.w2.scale is 'absent'"):
        _open(copy)


def test_an_index_that_points_to_the_wrong_shard_is_refused(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    shards = _shard(copy)
    index = copy / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"] = dict.fromkeys(values["weight_map"], shards[0].name)
    index.write_text(json.dumps(values))
    with pytest.raises(InputError, match="copy index and shard again"):
        _open(copy)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": [1]}'])
def test_a_broken_index_is_refused(tmp_path: Path, content: str) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    (copy / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match="weight_map"):
        _open(copy)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    copy = copied_checkpoint("steady_mtp", tmp_path)
    _shard(copy)
    (copy / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"number of .safetensors files is 2"):
        _open(copy)
