"""`neuron-harness report`: records to documents. Runs nothing; the same records, the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.core.errors import ExitCode, UsageError
from harness.core.suggest import near_names

if TYPE_CHECKING:
    from reports.ledger import Ledger

__all__ = ["register", "write_junit", "write_summary"]

_FORMATS = ("md", "html", "junit", "summary", "csv", "parquet")
# Both come from one document; a comparison has nothing else.
_PAGES = ("md", "html")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="runs/<run id>; several compare")
    ],
    out: Annotated[
        Path | None, typer.Option(help="where to write; the run's own directory if not given")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help=f"comma-separated: {', '.join(_FORMATS)}")
    ] = "md,html",
) -> None:
    """Render the records of a run, or compare several runs.

    Ends with the exit code of the run's verdict; of several runs, with the worst.
    """
    names = _format_names(formats)
    if len(run_dirs) == 1:
        code = _report_one(run_dirs[0], out, names)
    else:
        code = _report_several(run_dirs, out, names)
    raise typer.Exit(code)


def _format_names(formats: str) -> list[str]:
    names = [name.strip() for name in formats.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--format is empty: choose of {', '.join(_FORMATS)}")
    for name in names:
        if name not in _FORMATS:
            raise UsageError(f"--format {name!r} is not known{near_names(name, _FORMATS)}")
    return names


def _report_one(run_dir: Path, out: Path | None, names: list[str]) -> ExitCode:
    from reports.ledger import read_run
    from reports.verdict import verdict_of

    ledger, out = read_run(run_dir).require_records(), out or run_dir
    pages = [name for name in names if name in _PAGES]
    written = _write_pages(ledger, out, pages) if pages else []
    written += [
        path for name in names if name not in _PAGES for path in _WRITERS[name](ledger, out)
    ]
    print(*written, sep="\n")
    for notice in ledger.notices:
        print(f"notice: {notice}")
    verdict = verdict_of(ledger)
    print(f"{verdict.word}: {verdict.sentence}")
    return verdict.exit_code


def _report_several(run_dirs: list[Path], out: Path | None, names: list[str]) -> ExitCode:
    from reports.compare import comparison_of, comparison_verdict, read_runs
    from reports.render import write_html, write_markdown

    if out is None:
        raise UsageError("a comparison of several runs belongs to none of them: name --out DIR")
    for name in names:
        if name not in _PAGES:
            raise UsageError(f"--format {name} takes one run; a comparison is md or html")
    ledgers = read_runs(run_dirs)
    document = comparison_of(ledgers)
    if "md" in names:
        print(write_markdown(document, out))
    if "html" in names:
        print(write_html(document, out))
    print(document.sentence)
    return comparison_verdict(ledgers)


def _write_pages(ledger: Ledger, out: Path, names: list[str]) -> list[Path]:
    from reports.render import document_of, write_html, write_markdown

    document = document_of(ledger)
    written = [write_markdown(document, out, ledger.directory)] if "md" in names else []
    return written + ([write_html(document, out)] if "html" in names else [])


def write_junit(ledger: Ledger, out: Path) -> list[Path]:
    """junit.xml."""
    from reports.junit import to_junit
    from reports.render import write_text

    return [write_text(out / "junit.xml", to_junit(ledger))]


def write_summary(ledger: Ledger, out: Path) -> list[Path]:
    """summary.md; inside a GitHub job also its step summary and annotations."""
    from reports.render import write_text
    from reports.summary import annotation_lines, to_step_summary

    text = to_step_summary(ledger)
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        try:
            with Path(step_summary).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"GITHUB_STEP_SUMMARY: {step_summary}: {error.strerror}") from error
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print("\n".join(annotation_lines(ledger)))
    return [write_text(out / "summary.md", text)]


def _write_csv(ledger: Ledger, out: Path) -> list[Path]:
    from reports.export import export_csv

    return export_csv(ledger, out / "csv")


def _write_parquet(ledger: Ledger, out: Path) -> list[Path]:
    from reports.export import export_parquet

    return export_parquet(ledger, out / "parquet")


_WRITERS: Mapping[str, Callable[[Ledger, Path], list[Path]]] = {
    "junit": write_junit,
    "summary": write_summary,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
