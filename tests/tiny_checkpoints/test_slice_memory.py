"""A slice reads what it keeps: neither memory nor reads grow with the shards it is cut from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_GIB = 1 << 30
_CODE = """
import json, resource, sys
from pathlib import Path
import tiny_checkpoints.slicing as slicing

def facts():
    read = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())["rchar"]
    return int(read), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

before = facts()
slicing.slice_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), (0, 1, 2, 3, 6), (1, 2, 5))
print(json.dumps([after - start for start, after in zip(before, facts())]))
"""


def _with_bulk(directory: Path) -> Path:
    """The shard of layer 2, with a tensor of 1 GiB (a hole on disk) that no slice keeps."""
    index_file = directory / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    name = index["weight_map"]["layers.2.attn_norm.weight"]
    shard = directory / name
    content = shard.read_bytes()
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    data = content[8 + header_bytes :]
    bulk = {"dtype": "U8", "shape": [_GIB], "data_offsets": [len(data), len(data) + _GIB]}
    header["vision.bulk"] = bulk
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with shard.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        file.truncate(8 + len(text) + len(data) + _GIB)
    index["weight_map"]["vision.bulk"] = name
    index_file.write_text(json.dumps(index))
    return shard


def test_a_shard_of_a_gibibyte_is_cut_within_a_few_mebibytes(
    own_tiny_a: Path, tmp_path: Path
) -> None:
    shard = _with_bulk(own_tiny_a)
    assert shard.stat().st_size > _GIB
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(own_tiny_a), str(tmp_path / "cut")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    num_read, memory = json.loads(done.stdout)
    kept = sum(path.stat().st_size for path in (tmp_path / "cut").iterdir())
    assert kept > 1 << 20
    assert num_read < 8 * kept < _GIB
    assert memory < 128 << 20
