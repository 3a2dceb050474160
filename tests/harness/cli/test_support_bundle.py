"""A support bundle holds records and logs, and neither weights, prompts nor credentials."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.run.support_bundle import collect, redacted_line, write_archive

_SECRET_PROMPT = "314159"


def _run(root: Path) -> Path:
    run = root / "20261130-1"
    (run / "bundles" / "x").mkdir(parents=True)
    command = ["neuron-harness", "generate", "--ids", _SECRET_PROMPT, "--cp", "2"]
    (run / "run.json").write_text(json.dumps({"run_id": run.name, "command": command}))
    record = {"key": "k", "payload": {"status": "DIVERGED", "candidate_ids": [314159], "gap": 0.5}}
    (run / "tokens.jsonl").write_text(json.dumps(record) + '\n{"torn')
    (run / "03-tiny.log").write_text(
        f"$ neuron-harness generate --ids {_SECRET_PROMPT}\nAuthorization: Bearer abc123\nfine\n"
    )
    (run / "bundles" / "x" / "tensors.safetensors").write_bytes(b"WEIGHTS")
    return run


def _checkpoint(root: Path) -> Path:
    place = root / "ckpt"
    place.mkdir()
    (place / "config.json").write_text('{"text_config": {}}')
    (place / "model.safetensors").write_bytes(b"WEIGHTS")
    (place / "tokenizer.json").write_text("{}")
    return place


def _contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def test_only_what_is_meant_to_leave_leaves(tmp_path: Path) -> None:
    environment = {"NEURON_RT_VISIBLE_CORES": "0-3", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    entries = collect([_run(tmp_path)], _checkpoint(tmp_path), {"torch": "2.13"}, environment)
    count = write_archive(tmp_path / "out" / "bundle.tar.gz", entries)
    found = _contents(tmp_path / "out" / "bundle.tar.gz")
    assert count == len(found)
    assert sorted(found) == [
        "20261130-1/03-tiny.log",
        "20261130-1/run.json",
        "20261130-1/tokens.jsonl",
        "checkpoint/config.json",
        "environment.json",
        "facts.json",
    ]
    everything = "\n".join(found.values())
    for private in ("WEIGHTS", _SECRET_PROMPT, "hunter2", "abc123"):
        assert private not in everything
    first, torn = found["20261130-1/tokens.jsonl"].splitlines()
    assert json.loads(first)["payload"]["gap"] == 0.5
    assert json.loads(torn) == {"dropped": "a line that is no JSON"}
    assert json.loads(found["environment.json"]) == {"NEURON_RT_VISIBLE_CORES": "0-3"}
    assert "fine" in found["20261130-1/03-tiny.log"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("generate --prompt 'my secret words' --cp 2", "generate --prompt (removed) --cp 2"),
        ("API_KEY=abc next", "API_KEY=(removed) next"),
        ("rank 3: 12 collectives entered", "rank 3: 12 collectives entered"),
    ],
)
def test_lines_lose_prompts_and_credentials_and_nothing_else(line: str, expected: str) -> None:
    assert redacted_line(line) == expected


def test_a_directory_that_is_no_run_leaves_no_archive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run\.json"):
        write_archive(tmp_path / "b.tar.gz", collect([tmp_path], None, {}, {}))
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_an_archive(command, tmp_path: Path) -> None:
    _run(tmp_path / "runs")
    out = tmp_path / "s.tar.gz"
    assert command("support-bundle", "--runs", tmp_path / "runs", "--out", out) == 0
    facts = json.loads(_contents(out)["facts.json"])
    assert facts["findings"][0]["name"] == "python"
    assert facts["environment"]["torch"]
