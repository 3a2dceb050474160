"""The two documents: complete, escaped, self-contained, and the same bytes for the same records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.core.errors import InputError, UsageError, VacuousError
from reports.ledger import Ledger
from reports.render import document_of, render, write_markdown
from tests.reports.sample_names import MARKUP
from tests.reports.sample_run import DATA, RUN_ID, write_run


class Page(HTMLParser):
    """Tags, ids, links and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.loads += [str(value) for name, value in attrs if name in ("src", "srcset", "data")]
        if tag == "a":
            self.hrefs.append(str(found.get("href")))
        assert not any(name.startswith("on") for name in found)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return render(DATA, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(rendered: tuple[Path, Path]) -> Page:
    return Page(rendered[1].read_text(encoding="utf-8"))


def test_the_page_loads_nothing(rendered: tuple[Path, Path], page: Page) -> None:
    text = rendered[1].read_text(encoding="utf-8")
    assert page.loads == []
    assert not {"link", "iframe", "img", "object", "base"} & set(page.tags)
    assert page.tags.count("script") == 1
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_every_link_of_the_page_has_its_target(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert len(page.hrefs) > 500
    assert {href[1:] for href in page.hrefs} <= set(page.ids)


def test_names_with_markup_are_text(rendered: tuple[Path, Path], page: Page) -> None:
    assert MARKUP in page.text
    assert '<script>alert("x")' not in rendered[1].read_text(encoding="utf-8")
    markdown = rendered[0].read_text(encoding="utf-8")
    assert "<script>" not in markdown
    assert r"&lt;script&gt;alert(" in markdown
    # A bar within a name must not add a column to its row.
    widths: set[int] = set()
    for line in markdown.splitlines():
        if not line.startswith("|"):
            assert len(widths) <= 1
            widths = set()
        else:
            widths.add(len(re.findall(r"(?<!\\)\|", line)))


def test_sections_come_in_the_order_of_a_reader_s_questions(page: Page) -> None:
    names = ["overview", "tokens", "parity", "sweep", "gate", "stages", "environment", "records"]
    places = [page.ids.index(name) for name in names]
    assert places == sorted(places)


def test_the_headline_says_it_at_one_glance(rendered: tuple[Path, Path]) -> None:
    head = rendered[0].read_text(encoding="utf-8").splitlines()[:8]
    assert head[0] == f"# RANK LOST: neuron-harness report · {RUN_ID}"
    assert head[2].startswith("50 of 56 cases passed, 6 of 9 comparisons matched")


def test_both_documents_speak_of_every_status(rendered: tuple[Path, Path], page: Page) -> None:
    markdown = rendered[0].read_text(encoding="utf-8").replace("\\", "")
    for word in (
        "OUT_OF_TOLERANCE", "UNWRITTEN", "NEAR_TIE", "DIVERGED", "HANG", "CRASHED", "PRUNED",
        "REGRESSED", "INCONCLUSIVE", "NO_BASELINE", "MISSING", "NEW", "INCOMPARABLE", "INVALID",
        "short 8/9, near tie at 8; long 9/9", "published, not measured here", "not shown",
    ):  # fmt: skip
        assert word in page.text, word
        assert word in markdown, word


def test_markdown_numbers_lead_to_the_line_of_their_record(tmp_path: Path, green: Ledger) -> None:
    document = document_of(green)
    run = tmp_path / "runs" / "a b"
    text = write_markdown(document, tmp_path / "out", run).read_text(encoding="utf-8")
    assert "(../runs/a%20b/tokens.jsonl#L5)" in text
    inside = write_markdown(document, run, run).read_text(encoding="utf-8")
    assert "(tokens.jsonl#L5)" in inside
    for name in set(re.findall(r"\((plots/[a-z-]+\.svg)\)", text)):
        assert (tmp_path / "out" / name).is_file()


def test_the_same_records_give_the_same_bytes_in_another_process(
    tmp_path: Path, rendered: tuple[Path, Path]
) -> None:
    code = (
        "import sys; from pathlib import Path; from reports.render import render;"
        "render(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    # The page does not depend on where it is written, only the Markdown's relative links do.
    out = rendered[0].parent.with_name("again")
    subprocess.run(
        [sys.executable, "-c", code, str(DATA), str(out)],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
    )
    assert (out / "report.html").read_bytes() == rendered[1].read_bytes()
    assert (out / "report.md").read_bytes() == rendered[0].read_bytes()
    plots = sorted(path.name for path in (out / "plots").iterdir())
    for name in plots:
        again = (out / "plots" / name).read_bytes()
        assert again == (rendered[0].parent / "plots" / name).read_bytes()


def test_without_its_script_the_page_is_whole(page: Page) -> None:
    assert page.tags.count("table") == 16
    assert "input" not in page.tags  # filters exist only where the script can serve them
    assert "button" not in page.tags


def test_an_empty_run_is_not_rendered(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    with pytest.raises(VacuousError):
        render(run)
    assert not (run / "report.html").exists()


def test_a_broken_record_stops_the_report_and_leaves_none(sample_dir: Path) -> None:
    path = sample_dir / "parity.jsonl"
    path.write_text("{\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError, match=r"parity\.jsonl: line 1"):
        render(sample_dir)
    assert not (sample_dir / "report.html").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"cannot be written .*--out"):
        render(DATA, tmp_path / "file")
