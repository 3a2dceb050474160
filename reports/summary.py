"""What a GitHub job shows of a run: a step summary below 1 MiB, worst first, and annotations."""

from __future__ import annotations

from harness.core.errors import ExitCode
from reports.ledger import Entry, Ledger
from reports.markdown import escape, table_lines
from reports.tables.gate import telling_verdict_table
from reports.tables.parity import op_table
from reports.tables.shown import attention_table, shown_where_table, worst_first
from reports.tables.surroundings import stage_table
from reports.tables.sweep import point_table
from reports.tables.tokens import pair_table
from reports.verdict import entry_exit_code, verdict_of

__all__ = ["MAX_SUMMARY_BYTES", "annotation_lines", "to_step_summary"]

# GitHub drops a step summary of 1 MiB or more.
MAX_SUMMARY_BYTES = 1024 * 1024 - 1
# GitHub shows ten annotations of each level a step.
MAX_ANNOTATIONS = 10
_CUT = "\n\n*Cut here: GitHub shows no more than 1 MiB. The report of the run has everything.*\n"


def to_step_summary(ledger: Ledger) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY; what does not fit is cut at a line, with a notice."""
    verdict = verdict_of(ledger)
    lines = [f"## {verdict.word}: {escape(ledger.run_id)}", "", escape(verdict.sentence), ""]
    lines += [f"> {escape(notice)}" for notice in ledger.notices]
    tables = [attention_table(ledger, limit=None), shown_where_table(ledger)]
    makers = {
        "tokens": pair_table,
        "parity": op_table,
        "gate": telling_verdict_table,
        "sweep": point_table,
    }
    tables += [maker(ledger) for kind, maker in makers.items() if ledger.of_kind(kind)]
    if ledger.of_kind("stage"):
        tables.append(stage_table(ledger))
    for table in tables:
        lines += ["", *table_lines(table)]
    return _fitting(lines)


def _fitting(lines: list[str]) -> str:
    room = MAX_SUMMARY_BYTES - len(_CUT.encode())
    size = 0
    for place, line in enumerate(lines):
        size += len(line.encode("utf-8", "backslashreplace")) + 1
        if size > room:
            return "\n".join(lines[:place]) + _CUT
    return "\n".join(lines) + "\n"


def annotation_lines(ledger: Ledger) -> list[str]:
    """Workflow commands, worst first; what exceeds GitHub's limit is counted in the last one."""
    entries = worst_first(ledger)
    doubts = (ExitCode.CANNOT_JUDGE,)
    errors = [entry for entry in entries if entry_exit_code(entry) not in doubts]
    warnings = [entry for entry in entries if entry_exit_code(entry) in doubts]
    lines = [_command("error", entry) for entry in errors[:MAX_ANNOTATIONS]]
    lines += [_command("warning", entry) for entry in warnings[:MAX_ANNOTATIONS]]
    left = len(entries) - len(lines)
    if left:
        lines.append(f"::notice title=neuron-harness::{left} more in the step summary")
    return lines


def _command(level: str, entry: Entry) -> str:
    title = f"{entry.payload['status']} {entry.record.kind} {entry.key}"
    message = str(entry.payload.get("message") or entry.payload["status"])
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """A message as a workflow command takes it: nothing in it can start another command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
