"""Any checkpoint is held against its configuration; each fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import InputError
from tests.tiny_checkpoints.conftest import Edit
from tiny_checkpoints.inspection import inspect_checkpoint
from tiny_checkpoints.safetensors_file import Shard, StoredTensor, write_shard

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
LAYER_2 = "model-00004-of-00017.safetensors"
Rewrite = Callable[[Path, Edit], None]


def test_an_intact_checkpoint_is_counted(tiny_a: Path) -> None:
    found = inspect_checkpoint(tiny_a)
    assert (found.num_tensors, found.num_ignored) == (990, 0)
    assert found.num_parameters == 15_432_030
    assert found.num_bytes / 2**20 == pytest.approx(12.94, abs=5e-3)


@pytest.mark.parametrize("name", ["long", "steady_mtp", "stress"])
def test_checkpoints_made_by_others_pass(name: str) -> None:
    """Official names and formats, one file without index, no bias_vl."""
    assert inspect_checkpoint(ORACLE / name).num_tensors > 600


def test_vision_tensors_are_tolerated(own_tiny_a: Path) -> None:
    vision = StoredTensor("BF16", (2,), np.zeros(2, np.uint16))
    write_shard(own_tiny_a / "vision.safetensors", {"vision.norm.weight": vision})
    path = own_tiny_a / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    index["weight_map"]["vision.norm.weight"] = "vision.safetensors"
    path.write_text(json.dumps(index))
    assert inspect_checkpoint(own_tiny_a).num_ignored == 1


def _stored(dtype: str, data: np.ndarray) -> StoredTensor:
    return StoredTensor(dtype, data.shape, data)


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        ("layers.2.attn.wq_a.weight", 0x7F, "not finite"),
        ("layers.2.attn.wq_a.weight", 0xFF, "not finite"),
        ("layers.2.attn.wq_a.scale", 0, r"2\^-127"),
        ("layers.2.ffn.experts.1.w2.scale", 0xFF, "NaN"),
        ("layers.2.attn.q_norm.weight", 0x7F80, "not finite"),
        ("layers.2.attn.attn_sink", np.nan, "not finite"),
    ],
)
def test_a_bad_value_is_named_with_its_place(
    own_tiny_a: Path, edit_shard: Rewrite, tensor: str, value: float, message: str
) -> None:
    def spoil(tensors: dict[str, StoredTensor]) -> None:
        data = tensors[tensor].data.copy()
        data.reshape(-1)[-1] = value
        tensors[tensor] = _stored(tensors[tensor].dtype, data)

    edit_shard(own_tiny_a / LAYER_2, spoil)
    last = [length - 1 for length in Shard(own_tiny_a / LAYER_2).entries[tensor]["shape"]]
    with pytest.raises(InputError, match=message) as caught:
        inspect_checkpoint(own_tiny_a)
    assert caught.value.field == f"tensor {tensor}{last}"
    assert inspect_checkpoint(own_tiny_a, read_data=False).num_tensors == 990


def test_wrong_shape_and_dtype_are_named(own_tiny_a: Path, edit_shard: Rewrite) -> None:
    name = "layers.2.attn.attn_sink"

    def shorten(tensors: dict[str, StoredTensor]) -> None:
        tensors[name] = _stored("F32", tensors[name].data[:-1])

    edit_shard(own_tiny_a / LAYER_2, shorten)
    with pytest.raises(InputError, match=r"attn_sink, shape is \[7\]: config.json wants \[8\]"):
        inspect_checkpoint(own_tiny_a)

    def narrow(tensors: dict[str, StoredTensor]) -> None:
        tensors[name] = _stored("BF16", np.zeros(8, np.uint16))

    edit_shard(own_tiny_a / LAYER_2, narrow)
    with pytest.raises(InputError, match=r"attn_sink, dtype is 'BF16': config.json wants F32"):
        inspect_checkpoint(own_tiny_a)


def test_missing_and_foreign_tensors_are_named(own_tiny_a: Path) -> None:
    index_path = own_tiny_a / "model.safetensors.index.json"
    index = json.loads(index_path.read_text("utf-8"))
    shard = Shard(own_tiny_a / LAYER_2)
    tensors = {name: shard.read(name) for name in shard.entries}
    tensors["layers.2.attn.sink"] = tensors.pop("layers.2.attn.attn_sink")
    write_shard(own_tiny_a / LAYER_2, tensors)
    with pytest.raises(InputError, match=r"attn_sink is 'absent': the index has it"):
        inspect_checkpoint(own_tiny_a)
    del index["weight_map"]["layers.2.attn.attn_sink"]
    index_path.write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"tensor layers.2.attn.attn_sink is 'absent'"):
        inspect_checkpoint(own_tiny_a)
    tensors["layers.2.attn.attn_sink"] = tensors["layers.2.attn.sink"]
    write_shard(own_tiny_a / LAYER_2, tensors)
    with pytest.raises(InputError, match=r"attn.sink is 'present': not of this model; did you"):
        inspect_checkpoint(own_tiny_a)


def test_a_tensor_in_two_shards_is_refused(own_tiny_a: Path, edit_shard: Rewrite) -> None:
    norm = StoredTensor("BF16", (256,), np.ones(256, np.uint16))
    edit_shard(own_tiny_a / LAYER_2, lambda tensors: tensors.update({"norm.weight": norm}))
    with pytest.raises(InputError, match=f"also in {LAYER_2}"):
        inspect_checkpoint(own_tiny_a)


def test_a_missing_shard_and_a_missing_index_are_refused(own_tiny_a: Path) -> None:
    (own_tiny_a / LAYER_2).unlink()
    with pytest.raises(InputError, match="a shard is missing"):
        inspect_checkpoint(own_tiny_a)
    (own_tiny_a / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match="absent with 16 shards"):
        inspect_checkpoint(own_tiny_a)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "must be JSON"), ("[]", "JSON object"), ('{"a": 1}', "nested configuration")],
)
def test_a_broken_configuration_is_refused(own_tiny_a: Path, content: str, message: str) -> None:
    (own_tiny_a / "config.json").write_text(content)
    with pytest.raises(InputError, match=message):
        inspect_checkpoint(own_tiny_a)


def test_an_index_cannot_point_outside_its_directory(own_tiny_a: Path) -> None:
    path = own_tiny_a / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    index["weight_map"]["norm.weight"] = "../norm.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(InputError, match="beside their index"):
        inspect_checkpoint(own_tiny_a)


def test_an_absent_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file is 'absent'"):
        inspect_checkpoint(tmp_path / "none")
