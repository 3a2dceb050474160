"""A run directory as documents: Markdown with figures beside it, and one self-contained HTML."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from reports.document import Document, Figure, Section, Table, Tile, Tone
from reports.frame import rows_of
from reports.html import to_html
from reports.ledger import Ledger, read_run
from reports.markdown import PLOT_FOLDER, to_markdown
from reports.plots.distribution import cdf_figure
from reports.plots.latency import tpot_figure, ttft_figure
from reports.plots.margins import margin_figure
from reports.plots.matrix import matrix_figure
from reports.plots.mismatch import mismatch_figure
from reports.plots.parity import budget_figure, case_map_figure
from reports.plots.scaling import concurrency_figure, pareto_figure, scaling_figure
from reports.tables.bench import bench_table
from reports.tables.gate import metric_table, telling_verdict_table, verdict_table
from reports.tables.parity import case_table, op_table, red_case_table
from reports.tables.shown import attention_table, shown_where_table
from reports.tables.step import op_cost_table, step_table
from reports.tables.surroundings import environment_table, record_table, stage_table
from reports.tables.sweep import beside_published_table, point_table
from reports.tables.tokens import pair_table, prompt_table
from reports.verdict import AREAS, AreaVerdict, RunVerdict, tone_of, verdict_of

__all__ = ["document_of", "render", "write_html", "write_markdown", "write_text"]

_Plot = Callable[[Sequence[dict[str, Any]]], Figure | None]


def render(run_dir: Path, out_dir: Path | None = None) -> tuple[Path, Path]:
    """Write report.md (with plots/*.svg) and report.html; returns their paths.

    Args:
        out_dir: made if absent; the run directory itself where None.

    Raises:
        InputError: a record is broken; names file and line.
        UsageError: no such run, or the directory cannot be written.
        VacuousError: the run recorded nothing.
    """
    ledger = read_run(run_dir).require_records()
    target = prepared(out_dir or run_dir)
    document = document_of(ledger)
    return write_markdown(document, target, run_dir), write_html(document, target)


def write_markdown(document: Document, out_dir: Path, run_dir: Path | None = None) -> Path:
    """Write report.md and plots/*.svg; returns the former.

    Args:
        run_dir: where the records are that numbers lead to; None leads nowhere.
    """
    for figure in (figure for section in document.sections for figure in section.figures):
        write_text(out_dir / PLOT_FOLDER / f"{figure.name}.svg", figure.svg)
    records_at = None
    if run_dir is not None:
        path = Path(os.path.relpath(run_dir.resolve(), out_dir.resolve())).as_posix()
        records_at = "" if path == "." else path
    return write_text(out_dir / "report.md", to_markdown(document, records_at=records_at))


def write_html(document: Document, out_dir: Path) -> Path:
    """Write report.html, which needs no other file; returns its path."""
    return write_text(out_dir / "report.html", to_html(document))


def prepared(out_dir: Path) -> Path:
    """Make the directory before anything is computed for it; returns it.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out_dir, error) from error
    return out_dir


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all; returns its path.

    Raises:
        UsageError: the place cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8", newline="\n", errors="backslashreplace")
        unfinished.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written ({error.strerror}); choose a writable directory with --out"
    )


def document_of(ledger: Ledger) -> Document:
    """Everything the report of one run says."""
    verdict = verdict_of(ledger)
    return Document(
        title=f"neuron-harness report · {ledger.run_id}",
        verdict=verdict.word,
        tone=tone_of(verdict.exit_code),
        sentence=verdict.sentence,
        facts=_facts(ledger),
        tiles=_tiles(verdict),
        notices=ledger.notices,
        sections=(
            Section(
                "overview",
                "Overview",
                tables=(shown_where_table(ledger), attention_table(ledger)),
            ),
            _tokens_section(ledger),
            _parity_section(ledger),
            _sweep_section(ledger),
            *_step_sections(ledger),
            Section(
                "gate",
                "Gate",
                (
                    "Deterministic metrics are compared exactly. Timings need enough interleaved "
                    "pairs of runs; with fewer they are inconclusive, neither green nor red.",
                ),
                tables=(
                    *_present(ledger, "gate", telling_verdict_table, verdict_table),
                    metric_table(ledger),
                ),
            ),
            Section("stages", "Stages", tables=(stage_table(ledger),)),
            Section("environment", "Environment", tables=(environment_table(ledger),)),
            Section("records", "Records", tables=(record_table(ledger),)),
        ),
    )


def _facts(ledger: Ledger) -> tuple[tuple[str, str], ...]:
    command = ledger.run.get("command")
    facts = [("run", ledger.run_id)]
    if isinstance(command, list):
        facts.append(("command", shlex.join(str(word) for word in command)))
    if ledger.run.get("start"):
        facts.append(("started", str(ledger.run["start"])))
    facts.append(("records", str(len(ledger.entries))))
    return tuple(facts)


def _tiles(verdict: RunVerdict) -> tuple[Tile, ...]:
    """One a kind of evidence, in the order of the sections; what was not run says so."""
    areas = {area.kind: area for area in verdict.areas}
    return tuple(_tile(kind, areas.get(kind)) for kind in AREAS)


def _tile(kind: str, area: AreaVerdict | None) -> Tile:
    if area is None:
        return Tile("not run", AREAS[kind], "no record", Tone.MUTED, kind)
    value = f"{area.num_good} of {area.num_judged}"
    return Tile(value, area.title, area.breakdown, tone_of(area.exit_code), kind)


def _tokens_section(ledger: Ledger) -> Section:
    return Section(
        "tokens",
        "Token match",
        (
            "Greedy ids of a candidate setting against an oracle setting, then both re-scored "
            "on the oracle's prefix. Token 0 comes out of prefill, every later one out of decode.",
        ),
        figures=_drawn(rows_of(ledger, "tokens"), margin_figure),
        tables=_present(ledger, "tokens", pair_table, prompt_table),
    )


def _parity_section(ledger: Ledger) -> Section:
    return Section(
        "parity",
        "Kernel parity",
        figures=_drawn(rows_of(ledger, "parity"), budget_figure, case_map_figure, mismatch_figure),
        tables=_present(ledger, "parity", op_table, red_case_table, case_table),
    )


def _sweep_section(ledger: Ledger) -> Section:
    latencies: tuple[_Plot, ...] = (ttft_figure, tpot_figure, matrix_figure, cdf_figure)
    loads: tuple[_Plot, ...] = (scaling_figure, concurrency_figure, pareto_figure)
    return Section(
        "sweep",
        "Latency",
        (
            "Times of a CPU run show that the method works and how settings compare on this "
            "machine; they say nothing about Trainium.",
        ),
        figures=_drawn(rows_of(ledger, "sweep"), *latencies, *loads),
        tables=(
            *_present(ledger, "sweep", point_table, beside_published_table),
            # Whole: an empty column says that nobody told the count.
            *((bench_table(ledger),) if ledger.of_kind("sweep") else ()),
        ),
    )


def _step_sections(ledger: Ledger) -> tuple[Section, ...]:
    """Only of a run in which a step was taken apart."""
    if not ledger.of_kind("step"):
        return ()
    return (
        Section(
            "steps",
            "Decode step",
            (
                "A step is the time from one token to the next. Its parts are disjoint; what none "
                "of them holds is the residual.",
            ),
            tables=_present(ledger, "step", step_table, op_cost_table),
        ),
    )


def _drawn(rows: Sequence[dict[str, Any]], *plots: _Plot) -> tuple[Figure, ...]:
    figures = (plot(rows) for plot in plots)
    return tuple(figure for figure in figures if figure is not None)


def _present(ledger: Ledger, kind: str, *tables: Callable[[Ledger], Table]) -> tuple[Table, ...]:
    """The tables of a kind; without a record only the first, which says that there is none."""
    shown = tables if ledger.of_kind(kind) else tables[:1]
    return tuple(table(ledger).without_empty_columns() for table in shown)
