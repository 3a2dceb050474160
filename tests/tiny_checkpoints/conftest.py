"""One intact tiny-A for the tests that read, and copies for those that break things."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_checkpoints.generator import generate
from tiny_checkpoints.safetensors_file import Shard, StoredTensor, write_shard

Edit = Callable[[dict[str, StoredTensor]], None]


@pytest.fixture(scope="session")
def tiny_a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return generate("tiny-A", tmp_path_factory.mktemp("checkpoints") / "tiny-A")


@pytest.fixture
def own_tiny_a(tiny_a: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(tiny_a, tmp_path / "tiny-A"))


@pytest.fixture
def edit_shard() -> Callable[[Path, Edit], None]:
    """Rewrite a shard after `edit` changed its tensors."""

    def rewrite(path: Path, edit: Edit) -> None:
        shard = Shard(path)
        tensors = {name: shard.read(name) for name in shard.entries}
        edit(tensors)
        write_shard(path, tensors)

    return rewrite
