"""A difference is found and named: file, tensor, hash, remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import InputError, UsageError
from harness.core.shard_sums import SUMS_FILE
from tests.tiny_checkpoints.conftest import Edit
from tiny_checkpoints.generator import generate
from tiny_checkpoints.manifest import fingerprint, manifest_of, recognised_variant, verify
from tiny_checkpoints.safetensors_file import StoredTensor

LAYER_3 = "model-00005-of-00017.safetensors"


def test_an_intact_checkpoint_passes_and_is_recognised(tiny_a: Path) -> None:
    verify(tiny_a, "tiny-A")
    assert recognised_variant(tiny_a) == "tiny-A"


def test_one_flipped_bit_names_the_tensor(own_tiny_a: Path) -> None:
    path = own_tiny_a / LAYER_3
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"shared_experts.w3.weight") as caught:
        verify(own_tiny_a, "tiny-A")
    assert caught.value.file.endswith(LAYER_3)
    assert manifest_of("tiny-A")[LAYER_3] in caught.value.remedy
    assert "checkpoint make" in caught.value.remedy


def test_a_renamed_tensor_is_named(
    own_tiny_a: Path, edit_shard: Callable[[Path, Edit], None]
) -> None:
    def rename(tensors: dict[str, StoredTensor]) -> None:
        tensors["layers.3.attn.wq_x.scale"] = tensors.pop("layers.3.attn.wq_a.scale")

    edit_shard(own_tiny_a / LAYER_3, rename)
    with pytest.raises(InputError, match=r"tensor layers.3.attn.wq_a.scale"):
        verify(own_tiny_a, "tiny-A")


def test_the_same_tensors_in_another_order_still_pass(
    own_tiny_a: Path, edit_shard: Callable[[Path, Edit], None]
) -> None:
    path = own_tiny_a / LAYER_3
    before = path.read_bytes()
    header_bytes = int.from_bytes(before[:8], "little")
    padded = before[8 : 8 + header_bytes] + b" " * 8
    path.write_bytes(len(padded).to_bytes(8, "little") + padded + before[8 + header_bytes :])
    (own_tiny_a / SUMS_FILE).unlink()  # which is of whole files
    verify(own_tiny_a, "tiny-A")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_a_changed_text_file_is_named(own_tiny_a: Path, name: str) -> None:
    (own_tiny_a / name).write_bytes((own_tiny_a / name).read_bytes() + b" ")
    with pytest.raises(InputError) as caught:
        verify(own_tiny_a, "tiny-A")
    assert caught.value.file.endswith(name)
    assert caught.value.field == "sha256"


def test_missing_and_extra_files_are_named(own_tiny_a: Path) -> None:
    (own_tiny_a / "extra.txt").write_text("x")
    with pytest.raises(InputError, match=r"extra.txt is 'present'"):
        verify(own_tiny_a, "tiny-A")
    (own_tiny_a / LAYER_3).unlink()
    with pytest.raises(InputError, match=rf"{LAYER_3} is 'absent'"):
        verify(own_tiny_a, "tiny-A")
    with pytest.raises(InputError, match="directory is 'absent'"):
        verify(own_tiny_a / "nowhere", "tiny-A")


def test_hashes_beside_the_shards_are_verified_and_added_where_they_are_missing(
    own_tiny_a: Path,
) -> None:
    sums = own_tiny_a / SUMS_FILE
    made = sums.read_bytes()
    sums.write_bytes(made.replace(b"  model-00003", b"  model-x0003"))
    with pytest.raises(InputError, match=r"hash of model-00003-of-00017\.safetensors is 'absent'"):
        verify(own_tiny_a, "tiny-A")
    sums.unlink()
    verify(own_tiny_a, "tiny-A")
    generate("tiny-A", own_tiny_a)
    assert sums.read_bytes() == made


def test_another_variant_is_not_taken_for_this_one(tiny_a: Path) -> None:
    with pytest.raises(InputError):
        verify(tiny_a, "tiny-B")
    with pytest.raises(UsageError, match="not known"):
        manifest_of("tiny-Z")


def test_the_fingerprint_follows_the_content(tiny_a: Path, own_tiny_a: Path) -> None:
    assert fingerprint(own_tiny_a) == fingerprint(tiny_a)
    assert len(fingerprint(tiny_a)) == 16
    path = own_tiny_a / LAYER_3
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert fingerprint(own_tiny_a) != fingerprint(tiny_a)


def test_a_foreign_configuration_is_not_recognised(own_tiny_a: Path) -> None:
    (own_tiny_a / "config.json").write_text("{}")
    assert recognised_variant(own_tiny_a) is None
