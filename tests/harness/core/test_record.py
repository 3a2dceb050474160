"""Records of older and newer schemas: upgraded, kept, or refused."""

import json
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.record import SCHEMA_VERSION, RunRecord
from harness.core.record_upgrade import upgraded

STORED = Path(__file__).parent / "data" / "tokens_schema_1.jsonl"
LINES = {
    json.loads(line)["payload"]["status"]: line
    for line in STORED.read_text(encoding="utf-8").splitlines()
}


def test_the_stored_records_are_old():
    assert {json.loads(line)["schema"] for line in LINES.values()} == {1}
    assert SCHEMA_VERSION == 2


@pytest.mark.parametrize("status", LINES)
def test_an_old_record_gains_what_it_says_and_loses_nothing(status):
    old, record = json.loads(LINES[status]), RunRecord.from_line(LINES[status])
    assert record.schema == SCHEMA_VERSION
    positions = old["payload"]["positions"]
    wrong = [place for place, one in enumerate(positions) if one != "MATCH"]
    assert record.payload["first_changed"] == (wrong[0] if wrong else None)
    assert {k: v for k, v in record.payload.items() if k != "first_changed"} == old["payload"]
    # Written again it is of today's schema, and reads as the same record.
    assert RunRecord.from_line(record.to_line()) == record


def test_fields_nobody_knows_survive_reading_and_writing():
    line = LINES["DIVERGED"]
    again = json.loads(RunRecord.from_line(line).to_line())
    assert again["written_by_a_newer_tool"] == {"unit": "ms", "values": [1, 2]}
    assert again["payload"]["note"] == "kept"


def test_other_kinds_only_change_their_number():
    body = json.loads(LINES["MATCH"]) | {"kind": "metric", "payload": {"name": "a"}}
    assert upgraded(body) == body | {"schema": 2}
    assert upgraded(body | {"schema": 2}) == body | {"schema": 2}


@pytest.mark.parametrize("schema", [0, 3, -1, "1", None, True, 1.0])
def test_a_schema_this_version_does_not_know_is_refused(schema):
    line = json.dumps(json.loads(LINES["MATCH"]) | {"schema": schema})
    with pytest.raises(InputError, match=r"this version reads schemas 1\.\.2"):
        RunRecord.from_line(line, file="tokens.jsonl", number=7)


@pytest.mark.parametrize("payload", [None, [], "text", {"status": "MATCH"}, {"positions": None}])
def test_an_old_payload_that_is_none_is_refused_by_file_and_line(payload):
    line = json.dumps(json.loads(LINES["MATCH"]) | {"payload": payload})
    with pytest.raises(InputError, match=r"tokens\.jsonl: line 7, payload.*schema 1"):
        RunRecord.from_line(line, file="tokens.jsonl", number=7)
