"""A checkpoint's identity follows its content, not its place."""

from __future__ import annotations

import shutil

import pytest

import harness.run.checkpoint_id as module
from harness.core.errors import UsageError
from harness.run.checkpoint_id import checkpoint_id


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    return folder


def test_a_copy_elsewhere_has_the_same_identity(checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "two")
    (copy / "README.md").write_text("notes do not count")
    assert checkpoint_id(copy) == checkpoint_id(checkpoint)
    assert len(checkpoint_id(copy)) == 16


@pytest.mark.parametrize("whole_bytes", [10**6, 8192])
def test_a_changed_weight_or_setting_changes_it(checkpoint, monkeypatch, whole_bytes):
    monkeypatch.setattr(module, "_WHOLE_BYTES", whole_bytes)
    before = checkpoint_id(checkpoint)
    shard = checkpoint / "model.safetensors"
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    changed = checkpoint_id(checkpoint)
    assert changed != before
    (checkpoint / "config.json").write_text('{"a": 1}')
    assert checkpoint_id(checkpoint) not in (before, changed)


def test_what_is_no_checkpoint_is_refused(checkpoint, tmp_path):
    with pytest.raises(UsageError, match="is no directory"):
        checkpoint_id(tmp_path / "absent")
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"holds no \.safetensors"):
        checkpoint_id(checkpoint)
