"""Failed cases are drawn where they differ; passed ones are not."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InputError
from reports.ledger import Ledger, read_run
from reports.plots.mismatch import mismatch_figure
from reports.plots.style import inline_svg
from reports.render import render
from tests.reports.sample_run import record, write_run


def _row(name: str, cells: list[list[float]]) -> dict[str, Any]:
    found = {"shape": [len(cells), 64], "measure": "relative", "cells": cells}
    return {"case_id": name, "anchor": f"r{name}", "error_maps": {"y": found} if cells else {}}


def test_only_cells_that_differ_are_drawn_and_lead_to_their_record() -> None:
    rows = [_row("good", []), _row("bad", [[0.0, 1.0, 0.0], [0.0, 0.5, 0.0]])]
    figure = mismatch_figure(rows)
    assert figure is not None
    assert figure == mismatch_figure(rows)
    assert len(re.findall(r'href="#rbad"', figure.svg)) == 2
    assert ET.fromstring(inline_svg(figure.svg)).tag == "svg"


def test_more_maps_than_panels_are_said_and_none_is_no_figure() -> None:
    figure = mismatch_figure([_row(f"c{n}", [[1.0]]) for n in range(6)])
    assert figure is not None
    assert "the first 4 of 6 outputs" in figure.caption
    assert mismatch_figure([_row("good", []), _row("zero", [[0.0]])]) is None


def test_the_map_stands_in_the_page_of_a_red_run(sample: Ledger, tmp_path: Path) -> None:
    red = next(e for e in sample.of_kind("parity") if e.payload["status"] == "OUT_OF_TOLERANCE")
    maps = {"y": {"shape": [1, 2], "measure": "share", "cells": [[0.0, 0.25]]}}
    run = write_run(tmp_path / "run", [record("parity", "k", {**red.payload, "error_maps": maps})])
    _, page = render(run, tmp_path / "out")
    assert "Where failed outputs differ" in page.read_text()


@pytest.mark.parametrize(
    ("cells", "said"), [([[0.0], [0.0, 1.0]], "rows of one length"), ([["x"]], "numbers"), ([], "")]
)
def test_a_map_that_is_none_is_refused(
    sample: Ledger, tmp_path: Path, cells: list[Any], said: str
) -> None:
    red = next(e for e in sample.of_kind("parity") if e.payload["status"] == "OUT_OF_TOLERANCE")
    maps = {"y": {"shape": [1, 2], "measure": "share", "cells": cells}}
    run = write_run(tmp_path / "run", [record("parity", "k", {**red.payload, "error_maps": maps})])
    assert json.loads((run / "parity.jsonl").read_text())
    with pytest.raises(InputError, match=f"error_maps.y.cells.*{said}"):
        read_run(run)
