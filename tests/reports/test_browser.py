"""The page's script in headless Chromium: sorting, filtering, opening what a link leads to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reports.render import render
from tests.reports.sample_run import DATA

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
# What a reader does, done after the page's own script has run; its findings end up in <title>.
ACTIONS = """
const found = {};
const points = document.getElementById("t-sweep-points");
const column = (table, place) =>
  Array.from(table.tBodies[0].rows, (row) => row.cells[place].textContent);
const shown = (table) => Array.from(table.tBodies[0].rows).filter((row) => !row.hidden).length;
const head = (title) =>
  Array.from(points.tHead.rows[0].cells).findIndex((cell) => cell.textContent === title);
const click = (title) => points.tHead.rows[0].cells[head(title)].querySelector("button").click();
click("TTFT ms");
found.rising = column(points, head("TTFT ms"));
click("TTFT ms");
found.falling = column(points, head("TTFT ms"));
found.sort = points.tHead.rows[0].cells[head("TTFT ms")].getAttribute("aria-sort");
const box = points.closest("section").querySelector(".filter input");
box.value = "cpu failed";
box.dispatchEvent(new Event("input"));
found.filtered = shown(points);
box.value = "";
box.dispatchEvent(new Event("input"));
found.all = shown(points);
const details = document.getElementById("t-records").closest("details");
found.closed = details.open;
location.hash = points.querySelector("a").getAttribute("href");
window.addEventListener("hashchange", () => {
  found.opened = details.open;
  document.title = "DONE" + JSON.stringify(found);
});
"""


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=5000",
    "--dump-dom",
)


def dom_after_scripts(page: Path) -> str:
    """The page as Chromium has it once its scripts have run."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_tables_sort_and_filter_and_links_open_their_record(tmp_path: Path) -> None:
    _, html = render(DATA, tmp_path)
    text = html.read_text(encoding="utf-8")
    policy = re.search(r"script-src '(sha256-[^']+)'", text)
    assert policy is not None
    # The page admits its own script only; the test's actions need to be let in.
    text = text.replace(f"'{policy.group(1)}'", "'unsafe-inline'")
    text = text.replace("</body>", f"<script>{ACTIONS}</script></body>")
    html.write_text(text, encoding="utf-8")
    title = re.search(r"<title>DONE(.*?)</title>", dom_after_scripts(html), re.DOTALL)
    assert title is not None
    found: dict[str, Any] = json.loads(title.group(1).replace("&amp;", "&"))
    rising = [cell.split(" ")[0] for cell in found["rising"]]
    assert (
        rising == ["31.1", "47.7", "65.9", "71.3", "94.0", "143", "196", "297", "574"] + ["–"] * 3
    )
    falling = [cell.split(" ")[0] for cell in found["falling"]]
    assert falling == rising[:9][::-1] + ["–"] * 3
    assert found["sort"] == "descending"
    assert (found["filtered"], found["all"]) == (1, 12)
    assert (found["closed"], found["opened"]) == (False, True)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_policy_lets_the_page_s_own_script_run_and_no_other(tmp_path: Path) -> None:
    _, html = render(DATA, tmp_path)
    text = html.read_text(encoding="utf-8")
    foreign = "<script>document.title = 'DONE{}'</script>"
    html.write_text(text.replace("</body>", f"{foreign}</body>"), encoding="utf-8")
    dom = dom_after_scripts(html)
    assert "<title>DONE" not in dom
    assert 'type="search"' in dom  # made by the page's own script
