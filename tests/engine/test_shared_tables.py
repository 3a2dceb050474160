"""The Engram tables of all ranks of an instance: one copy, the checkpoint's bytes, no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from engine import LLM
from engine.config.parse import load_model_config
from engine.engram import shared_tables
from engine.engram.shared_tables import SharedTables, create_table_segment, table_extents
from engine.parallel import host_memory, processes
from engine.parallel.shared_segment import SharedSegment
from engine.weights.checkpoint import Checkpoint
from harness.core.errors import UsageError
from tests.engine.oracle import directory, edited_config, settings

_NAME = "steady_mtp"


def _segments(pid: int) -> list[tuple[int, int]]:
    """(inode, bytes) of the nameless /dev/shm files a process has mapped."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/dev/shm/#"):
            first, last = (int(text, 16) for text in fields[0].split("-"))
            found.append((int(fields[4]), last - first))
    return found


def _num_table_bytes() -> int:
    last = table_extents(load_model_config(directory(_NAME)))[-1]
    return last.offset + last.num_bytes


def _tables_of(pid: int) -> list[int]:
    """Inodes of mapped segments as large as the tables."""
    size = -(-_num_table_bytes() // 4096) * 4096
    return [inode for inode, num_bytes in _segments(pid) if num_bytes == size]


@pytest.mark.parametrize("num_shares", [1, 2, 3, 7])
def test_ranks_fill_one_copy_with_the_bytes_of_the_checkpoint(
    num_shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tables, "_SLAB_BYTES", 1000)
    config = load_model_config(directory(_NAME))
    files = Checkpoint(directory(_NAME))
    segment = create_table_segment(config)
    assert segment is not None
    ranks = [
        SharedTables(files, SharedSegment.open(segment.path), config) for _ in range(num_shares)
    ]
    for rank, tables in enumerate(ranks):
        tables.fill(rank, num_shares)
    assert config.engram is not None
    assert len(table_extents(config)) == 2 * len(config.engram.layer_ids)
    for extent in table_extents(config):
        expected = files.read(extent.name, extent.dtype, extent.shape)
        for tables in ranks:
            assert torch.equal(tables.read(extent.name, extent.dtype, extent.shape), expected)


def test_what_is_no_table_comes_from_the_files() -> None:
    config = load_model_config(directory(_NAME))
    files = Checkpoint(directory(_NAME))
    segment = create_table_segment(config)
    assert segment is not None
    tables = SharedTables(files, segment, config)
    shape = (config.hidden_size,)
    assert torch.equal(
        tables.read("norm.weight", "BF16", shape), files.read("norm.weight", "BF16", shape)
    )
    assert tables.has("norm.weight")
    assert not tables.has("no such tensor")


def test_a_model_without_engram_needs_no_segment(tmp_path: Path) -> None:
    file = edited_config(tmp_path, lambda values: values["text_config"].pop("engram_layer_ids"))
    config = load_model_config(file.parent)
    assert config.engram is None
    assert create_table_segment(config) is None


def test_every_rank_maps_the_one_copy_of_its_instance() -> None:
    with LLM(settings(_NAME, cp=4)) as first, LLM(settings(_NAME, cp=2)) as second:
        inodes = [
            [inode for pid in llm.executor.pids for inode in _tables_of(pid)]  # type: ignore[attr-defined]
            for llm in (first, second)
        ]
        first.close()
        # The end of one instance takes nothing from the other.
        (one,) = second.generate([[5, 6, 7]], max_tokens=2)
    assert [len(found) for found in inodes] == [4, 2]
    assert [len(set(found)) for found in inodes] == [1, 1]
    assert inodes[0][0] != inodes[1][0]
    with LLM(settings(_NAME)) as llm:
        (expected,) = llm.generate([[5, 6, 7]], max_tokens=2)
    assert one.token_ids == expected.token_ids


def test_a_full_dev_shm_ends_with_needed_and_free_bytes_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(descriptor: int) -> int:
        assert os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path))
        return 1000

    monkeypatch.setattr("engine.parallel.shared_segment._free_bytes", no_room)
    monkeypatch.setattr(
        host_memory, "create_table_segment", lambda config: create_table_segment(config, tmp_path)
    )
    started: list[object] = []
    monkeypatch.setattr(processes.ProcessExecutor, "_start", lambda *args: started.append(args))
    needed = _num_table_bytes()
    with pytest.raises(UsageError, match=f"need {needed} bytes, 1000 are free; remove what"):
        LLM(settings(_NAME, cp=2))
    assert started == []


_LEADER = """
    import sys, time
    from engine import LLM
    from harness.core.engine_face import EngineSettings

    if __name__ == "__main__":
        llm = LLM(EngineSettings(sys.argv[1], cp=2, numerics="exact", num_threads=1))
        print(*llm.executor.pids, flush=True)
        time.sleep(600)
"""


def test_nothing_stays_in_dev_shm_when_the_leader_is_killed(tmp_path: Path) -> None:
    """That a nameless segment's memory goes with its last user is test_shared_segment's."""
    script = tmp_path / "leader.py"
    script.write_text(textwrap.dedent(_LEADER))
    names_before = set(os.listdir("/dev/shm"))
    command = [sys.executable, str(script), str(directory(_NAME))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        pids = [int(text) for text in leader.stdout.readline().split()]
        assert [len(_tables_of(pid)) for pid in pids] == [1, 1]
        leader.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    leftovers = set(os.listdir("/dev/shm")) - names_before
    assert not [name for name in leftovers if "neuron-harness" in name or "pym" in name]
