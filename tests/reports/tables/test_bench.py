"""The bench table: figures of hand-made stamps, counts only where told, published rows labelled."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from harness.core.results import PointStatus, SweepPoint
from harness.core.sweep_spec import point_key
from reports.bench import COUNTS, bench_rows, setting_name
from reports.document import ABSENT, Table
from reports.export import export_csv
from reports.ledger import Ledger, read_run
from reports.published import PUBLISHED_LABEL
from reports.render import render
from reports.tables.bench import bench_table
from tests.reports.sample_run import record, write_run
from tests.reports.sample_sweep import sweep_config

NS_PER_MS = 1_000_000
PLAIN = {"collectives": 24.0, "launches": 310.0, "prefill_launches": 620.0}


def request(*gaps_ms: float, **more: Any) -> dict[str, Any]:
    """A first token after 100 ms, then one after each gap; a gap of 0 is the same step."""
    stamps = [100 * NS_PER_MS]
    for gap in gaps_ms:
        stamps.append(stamps[-1] + round(gap * NS_PER_MS))
    return {
        "t_send_ns": 0,
        "token_ns": stamps,
        "prompt_len": 512,
        "num_tokens": len(stamps),
        "count_source": "engine",
        "finish_reason": "length",
        **more,
    }


def point(
    requests: list[dict[str, Any]], input_len: int = 512, cp: int = 1, **more: Any
) -> SweepPoint:
    given = {name: more.pop(name) for name in ("counters", "compile_events") if name in more}
    config = sweep_config(input_len, cp, **more)
    return SweepPoint(point_key(config), config, PointStatus.OK, "", tuple(requests), **given)


PLAIN_POINT = point([request(40.0, 60.0)], speculative="", counters=PLAIN, compile_events=0)
# Two steps give five tokens: TPOT (60 + 60) / 4 = 30 ms, a step 60 ms.
DRAFTED_POINT = point(
    [request(60.0, 0.0, 60.0, 0.0)],
    cp=2,
    speculative="dspark",
    counters={
        **PLAIN,
        "regions": 12.0,
        "mean_acceptance_length": 2.0,
        "moe_overflows": 3.0,
        "moe_dense_reruns": 1.0,
    },
)
FOREIGN_POINT = point(
    [request(50.0, 50.0, count_source="usage")],
    numerics="served",
    cp=0,
    mode="online",
    attached="http://host:8000",
    served_model="big",
)


def ledger_of(place: Path, *points: SweepPoint) -> Ledger:
    return read_run(write_run(place / "run", [record("sweep", one.key, one) for one in points]))


def shown(table: Table) -> list[dict[str, str]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (c.text for c in row.cells), strict=True)) for row in table.rows]


def test_a_plain_point_has_its_step_and_the_counts_it_told(tmp_path: Path) -> None:
    row = shown(bench_table(ledger_of(tmp_path, PLAIN_POINT)))[0]
    assert (row["step ms"], row["TPOT ms"]) == ("50.0", "50.0")
    assert (row["acceptance"], row["TPOT × acceptance ms"]) == ("1 (plain)", "50.0")
    assert row["collectives / step"] == "24"
    assert row["launches / step"] == "310"
    assert row["prefill launches / prompt"] == "620"
    assert row["compile events"] == "0", "a zero that was told is a zero"
    for title in ("regions / step", "fallbacks / step", "MoE overflows", "MoE dense reruns"):
        assert row[title] == ABSENT


def test_drafts_make_tpot_shorter_than_a_step_and_the_product_is_the_step(tmp_path: Path) -> None:
    row = shown(bench_table(ledger_of(tmp_path, DRAFTED_POINT)))[0]
    assert (row["step ms"], row["TPOT ms"]) == ("60.0", "30.0")
    assert (row["acceptance"], row["TPOT × acceptance ms"]) == ("2.00", "60.0")
    assert (row["MoE overflows"], row["MoE dense reruns"]) == ("3", "1")
    assert row["compile events"] == ABSENT
    assert "dspark" in row["setting"]


def test_acceptance_is_told_by_place(tmp_path: Path) -> None:
    counters = {
        "num_drafts": 4.0,
        "mean_acceptance_length": 2.25,
        "accepted_at_0": 3.0,
        "accepted_at_1": 2.0,
        "accepted_at_2": 0.0,
    }
    drafted = point([request(60.0, 0.0)], speculative="dspark", counters=counters)
    ledger = ledger_of(tmp_path, drafted)
    assert shown(bench_table(ledger))[0]["acceptance"] == "2.25 (0.75 0.50 0.00)"
    (row,) = bench_rows(ledger)
    assert row.acceptance_by_place == (0.75, 0.5, 0.0)


def test_a_server_that_tells_nothing_leaves_dashes_and_no_zero(tmp_path: Path) -> None:
    row = shown(bench_table(ledger_of(tmp_path, FOREIGN_POINT)))[0]
    assert row["setting"] == "big at http://host:8000"
    assert row["TPOT ms"] == "50.0"
    silent = {"step ms", "acceptance", "TPOT × acceptance ms", *COUNTS.values()}
    assert {row[title] for title in silent} == {ABSENT}


def test_steps_are_those_that_the_server_counted(tmp_path: Path) -> None:
    """Tokens of one step travel in chunks of their own, so stamps cannot tell."""
    told = request(60.0, 0.1, 59.9, 0.1, count_source="usage", num_decode_steps=2)
    (row,) = bench_rows(ledger_of(tmp_path, point([told], speculative="dspark")))
    assert row.step_ms is not None
    assert row.step_ms.median == pytest.approx(120.1 / 2)


def test_published_rows_are_labelled_and_compare_by_the_plain_step(tmp_path: Path) -> None:
    table = bench_table(ledger_of(tmp_path, PLAIN_POINT))
    published = [row for row in shown(table) if row["source"] == PUBLISHED_LABEL]
    assert [row["setting"] for row in published] == ["DeepInfer"] * 4 + ["vllm-neuron"] * 4
    first, drafted = published[0], published[4]
    assert (first["step ms"], first["TPOT ms"], first["acceptance"]) == ("447", "447", "1 (plain)")
    assert (drafted["step ms"], drafted["TPOT ms"]) == ("about 340 plain", "117–127")
    assert drafted["acceptance"] == "about 2.75"
    assert drafted["TPOT × acceptance ms"] == "322–349"
    assert {published[5][title] for title in ("step ms", "TPOT ms", "acceptance")} == {ABSENT}
    assert "about 340 ms, and that is what DeepInfer's 447 ms compares with" in table.note


def test_points_stand_setting_by_setting_and_only_measured_ones(tmp_path: Path) -> None:
    longer = point([request(45.0)], input_len=1024, speculative="")
    failed = SweepPoint("k", sweep_config(64, 4), PointStatus.CRASHED, "rank 2 died")
    found = bench_rows(ledger_of(tmp_path, longer, DRAFTED_POINT, failed, PLAIN_POINT))
    assert [(row.setting, row.input_len) for row in found] == [
        ("fast cp=1", 512),
        ("fast cp=1", 1024),
        ("fast cp=2 dspark", 512),
    ]


def test_it_stands_in_both_documents_and_as_csv(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, PLAIN_POINT, FOREIGN_POINT)
    markdown, html = render(tmp_path / "run", tmp_path / "out")
    text = markdown.read_text(encoding="utf-8")
    heading = "| setting | shape | source | step ms | TPOT ms | acceptance |"
    assert heading in text
    assert "MoE dense reruns" in re.sub(r"<[^>]*>", "", html.read_text(encoding="utf-8"))
    paths = {path.name: path for path in export_csv(ledger, tmp_path / "csv")}
    with paths["bench.csv"].open(encoding="utf-8", newline="") as file:
        plain, foreign = csv.DictReader(file)
    assert float(plain["step_median_ms"]) == float(plain["tpot_times_acceptance_ms"]) == 50.0
    assert (plain["collectives"], plain["moe_overflows"]) == ("24.0", "")
    assert {foreign[name] for name in ("step_median_ms", "acceptance", *COUNTS)} == {""}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "fast cp=2"),
        ({"ep": 8}, "fast cp=2 ep=8"),
        ({"ops": ["references.op_table:TABLE", "kernels.op_table:TABLE"]}, "fast cp=2 ops=kernels"),
        ({"context_buckets": [64, 128], "mode": "online"}, "fast cp=2 buckets=64,128 online"),
        ({"speculative": "dspark", "confidence_threshold": 0.5}, "fast cp=2 dspark cut=0.5"),
        (
            {"prefill": "attention", "enforce_eager": False, "moe_capacity": 4},
            "fast cp=2 prefill=attention compiled capacity=4",
        ),
    ],
)
def test_a_setting_is_named_by_what_is_not_usual(changes: dict[str, Any], name: str) -> None:
    assert setting_name({**sweep_config(512, 2), **changes}) == name
