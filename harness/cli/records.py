"""`neuron-harness records`: lists runs, lists and filters records, exports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.core.errors import UsageError, VacuousError
from harness.core.record import KINDS
from harness.core.suggest import near_names

if TYPE_CHECKING:
    from rich.table import Table

    from reports.ledger import Ledger

__all__ = ["register"]

_FORMATS = ("table", "jsonl", "csv", "parquet")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("records")(records)


def records(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="a run, or a directory of runs to list")
    ] = Path("runs"),
    kind: Annotated[
        list[str] | None, typer.Option(help=f"only these kinds: {', '.join(KINDS)}")
    ] = None,
    status: Annotated[list[str] | None, typer.Option(help="only these statuses")] = None,
    key: Annotated[str, typer.Option(help="only keys that fit a shell pattern")] = "",
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=TEXT", help="only where a column is TEXT")
    ] = None,
    form: Annotated[str, typer.Option("--format", help=", ".join(_FORMATS))] = "table",
    out: Annotated[
        Path | None, typer.Option(help="where to write csv, parquet or jsonl (jsonl: a file)")
    ] = None,
) -> None:
    """List the runs of a directory, or list, filter and export the records of one run."""
    from reports.ledger import read_run
    from reports.select import Selection, select

    if form not in _FORMATS:
        raise UsageError(f"--format {form!r} is not known{near_names(form, _FORMATS)}")
    selection = Selection(kind or (), status or (), key, [_pair(text) for text in where or ()])
    runs = _runs_below(directory)
    if runs:
        if selection != Selection((), (), "", []) or form != "table" or out is not None:
            raise UsageError(f"{directory}: filters and exports take one run, not a directory")
        _list_runs(runs)
        return
    ledger = read_run(directory)
    for notice in ledger.notices:
        print(f"note: {notice}", file=sys.stderr)
    chosen = select(ledger.require_records(), selection)
    if not chosen.entries:
        raise VacuousError(f"{directory}: none of {len(ledger.entries)} records fits the filters")
    _EXPORTS[form](chosen, out)


def _pair(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise UsageError(f"--where {text!r} must read COLUMN=TEXT")
    return column, value


def _runs_below(directory: Path) -> list[Path]:
    """The runs in a directory that is not a run itself."""
    if not directory.is_dir():
        raise UsageError(f"{directory}: is no directory; name a run or a directory of runs")
    if any((directory / name).exists() for name in ("run.json", *(f"{k}.jsonl" for k in KINDS))):
        return []
    return sorted(path.parent for path in directory.glob("*/run.json"))


def _list_runs(runs: list[Path]) -> None:
    from rich.table import Table

    from reports.ledger import read_run
    from reports.verdict import verdict_of

    table = Table("run", "started", "records", "verdict", "what was found")
    for path in runs:
        ledger = read_run(path)
        verdict = verdict_of(ledger)
        phrases = "; ".join(area.phrase for area in verdict.areas)
        started, count = str(ledger.run.get("start", "")), str(len(ledger.entries))
        _add_row(table, (path.name, started, count, verdict.word, phrases))
    _print(table)


def _print_table(ledger: Ledger, out: Path | None) -> None:
    from rich.table import Table

    if out is not None:
        raise UsageError("--out goes with --format jsonl, csv or parquet")
    table = Table("kind", "key", "status", "on disk", "message")
    for entry in ledger.entries:
        status = str(entry.payload.get("status", ""))
        message = str(entry.payload.get("message", ""))
        _add_row(table, (entry.record.kind, entry.key, status, entry.source, message))
    _print(table)
    print(f"{len(ledger.entries)} records")


def _add_row(table: Table, cells: tuple[str, ...]) -> None:
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells))  # a name in brackets is no markup


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console()
    # A pipe has no width: nothing may be cut there.
    Console(width=None if console.is_terminal else 240).print(table)


def _write_jsonl(ledger: Ledger, out: Path | None) -> None:
    from reports.render import write_text

    text = "".join(entry.record.to_line() + "\n" for entry in ledger.entries)
    if out is None:
        print(text, end="")
    else:
        print(write_text(out, text))


def _write_csv(ledger: Ledger, out: Path | None) -> None:
    from reports.export import export_csv

    for path in export_csv(ledger, _required(out)):
        print(path)


def _write_parquet(ledger: Ledger, out: Path | None) -> None:
    from reports.export import export_parquet

    for path in export_parquet(ledger, _required(out)):
        print(path)


def _required(out: Path | None) -> Path:
    if out is None:
        raise UsageError("csv and parquet write one file a kind: name --out DIR")
    return out


_EXPORTS: Mapping[str, Callable[[Ledger, Path | None], None]] = {
    "table": _print_table,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "parquet": _write_parquet,
}
