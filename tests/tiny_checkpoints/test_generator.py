"""The same bits every time, whole or not at all."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import InputError, UsageError
from tiny_checkpoints import writer
from tiny_checkpoints.generator import generate
from tiny_checkpoints.manifest import measured_hashes
from tiny_checkpoints.variants import VARIANTS
from tiny_checkpoints.writer import geometry_of, shards_of, write_checkpoint


def test_another_process_with_another_hash_seed_writes_the_same_bytes(
    tiny_a: Path, tmp_path: Path
) -> None:
    code = "import sys; from tiny_checkpoints.generator import generate; generate(*sys.argv[1:])"
    subprocess.run(
        [sys.executable, "-c", code, "tiny-A", str(tmp_path / "again")],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "2"},
        timeout=120,
    )
    names = sorted(path.name for path in tiny_a.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    same, different, unreadable = filecmp.cmpfiles(tiny_a, tmp_path / "again", names, shallow=False)
    assert (different, unreadable) == ([], [])
    assert len(same) == 23


@pytest.mark.parametrize("variant", ["steady", "tiny-D", "tiny-T"])
def test_other_variants_equal_their_manifest(variant: str, tmp_path: Path) -> None:
    assert generate(variant, tmp_path / "x") == tmp_path / "x"


@pytest.mark.slow
def test_tiny_b_equals_its_manifest(tmp_path: Path) -> None:
    generate("tiny-B", tmp_path / "x")


def test_variants_of_one_geometry_differ_in_their_head_and_embedding_only() -> None:
    from tiny_checkpoints.manifest import manifest_of

    plain, steady = manifest_of("tiny-A"), manifest_of("steady")
    differing = [name for name in plain if plain[name] != steady[name]]
    assert differing == ["model-00001-of-00017.safetensors", "model-00012-of-00017.safetensors"]


def test_shards_follow_the_layers_with_the_tables_last() -> None:
    shards = shards_of(geometry_of(VARIANTS["tiny-A"]))
    parts = [{unit.part for unit in units} for units in shards.values()]
    expected = ["embed", *(f"layers.{i}" for i in range(10)), "head"]
    expected += [*(f"mtp.{i}" for i in range(3)), "engram.1", "engram.4"]
    assert parts == [{part} for part in expected]


def test_the_index_names_every_tensor_and_the_total_size(tiny_a: Path) -> None:
    index = json.loads((tiny_a / "model.safetensors.index.json").read_text("utf-8"))
    assert len(index["weight_map"]) == 990
    assert index["metadata"]["total_size"] / 2**20 == pytest.approx(12.94, abs=5e-3)
    assert index["weight_map"]["layers.4.engram.wkv.scale"] == "model-00017-of-00017.safetensors"


def test_an_intact_checkpoint_is_reused_untouched(own_tiny_a: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in own_tiny_a.iterdir()}
    generate("tiny-A", own_tiny_a)
    assert before == {path.name: path.stat().st_mtime_ns for path in own_tiny_a.iterdir()}


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    generate("tiny-A", tmp_path / "here")
    assert len(measured_hashes(tmp_path / "here")) == 22


def test_something_else_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not a whole tiny-A"):
        generate("tiny-A", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_breaks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(path: Path, tensors: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_shard", full_disk)
    with pytest.raises(OSError, match="No space left"):
        generate("tiny-A", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_variant_is_answered_with_near_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean tiny-A"):
        generate("tinyA", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_every_parameter_varies(tiny_a: Path) -> None:
    """No tensor is a constant, and scales differ between neighbouring blocks."""
    from tiny_checkpoints.safetensors_file import Shard

    shard = Shard(tiny_a / "model-00004-of-00017.safetensors")
    for name in shard.entries:
        assert len(set(shard.read(name).data.flatten().tolist())) > 1, name
    scale = shard.read("layers.2.ffn.experts.0.w1.scale").data.astype(int)
    assert (scale[:, 1:] != scale[:, :-1]).mean() > 0.3


def test_writing_twice_in_one_process_gives_the_same_hashes(tiny_a: Path, tmp_path: Path) -> None:
    write_checkpoint(VARIANTS["tiny-A"], tmp_path)
    assert measured_hashes(tmp_path) == measured_hashes(tiny_a)


def test_a_trained_variant_is_copied_and_its_damage_named(tmp_path: Path) -> None:
    place = generate("tiny-T", tmp_path / "tiny-T")
    shard = place / "model-00003-of-00009.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"tensor layers\.1\."):
        generate("tiny-T", place)


def test_a_package_without_the_trained_weights_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_checkpoints import stored

    monkeypatch.setattr(stored.resources, "files", lambda _: tmp_path / "package")
    with pytest.raises(InputError, match="install the package again"):
        stored.stored_directory(VARIANTS["tiny-T"])
    with pytest.raises(InputError, match="install the package again"):
        generate("tiny-T", tmp_path / "x")
