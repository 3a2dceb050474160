"""Token match: one line a pair ("short 8/9, near tie at 8; long 9/9"), one row a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.core.errors import ExitCode
from reports.document import ABSENT, Cell, Column, Link, Row, Table, Tone
from reports.frame import rows_of
from reports.ledger import Entry, Ledger
from reports.tables.cells import link_of, number_cell, scientific, status_cell, text_cell
from reports.verdict import entry_exit_code, tone_of

__all__ = ["match_text", "pair_table", "phase_texts", "prompt_table"]

_WORST_FIRST = (ExitCode.RANK, ExitCode.MISMATCH, ExitCode.VACUOUS, ExitCode.CANNOT_JUDGE)


def match_text(row: dict[str, Any]) -> str:
    """ "8/9, near tie at 8", "9/9" or the status of a comparison that never came about."""
    if not row["positions"]:
        return str(row["status"])
    text = f"{row['prefix_length']}/{row['num_generated']}"
    if row["status"] == "MATCH":
        return text
    word = {"NEAR_TIE": "near tie", "DIVERGED": "diverged"}.get(row["status"], row["status"])
    places = _places(row)
    return f"{text}, {word} at {places}" if places else f"{text}, {word}"


def _places(row: dict[str, Any]) -> str:
    """The positions that carry the status, else where free running parts; at most four."""
    found = [str(at) for at, status in enumerate(row["positions"]) if status == row["status"]]
    if not found and row["first_divergence"] is not None:
        found = [str(row["first_divergence"])]
    if row["status"] == "DIVERGED":
        return "".join(found[:1])  # what follows the first wrong token has another prefix
    return ", ".join(found[:4]) + (", …" if len(found) > 4 else "")


def phase_texts(positions: Sequence[str]) -> tuple[str, str]:
    """The verdict split by phase: token 0 is prefill, every later one is decode or cache."""
    if not positions:
        return ABSENT, ABSENT
    decode = positions[1:]
    if not decode:
        return _word(positions[0]), ABSENT
    counts = [(status, decode.count(status)) for status in ("MATCH", "NEAR_TIE", "DIVERGED")]
    matched = f"{counts[0][1]}/{len(decode)} match"
    others = [f"{count} {_word(status)}" for status, count in counts[1:] if count]
    return _word(positions[0]), ", ".join([matched, *others])


def _word(status: str) -> str:
    return status.lower().replace("_", " ")


def pair_table(ledger: Ledger) -> Table:
    """One row a pair of settings over all of its prompts."""
    groups: dict[tuple[str, str, str], list[tuple[Entry, dict[str, Any]]]] = {}
    entries = ledger.of_kind("tokens")
    for entry, row in zip(entries, rows_of(ledger, "tokens"), strict=True):
        key = (row["candidate"], row["oracle"], row["origin"])
        groups.setdefault(key, []).append((entry, row))
    return Table(
        name="tokens-pairs",
        title="Pairs of settings",
        columns=(
            Column("candidate"),
            Column("oracle"),
            Column("shown on"),
            Column("verdict"),
            Column("equal prefix / generated"),
        ),
        rows=tuple(_pair_row(key, group) for key, group in groups.items()),
        empty="no tokens were compared",
    )


def _pair_row(key: tuple[str, str, str], group: list[tuple[Entry, dict[str, Any]]]) -> Row:
    entry, _ = min(group, key=lambda item: _severity(entry_exit_code(item[0])))
    summary = "; ".join(f"{row['prompt']} {match_text(row)}" for _, row in group)
    status = str(entry.payload["status"])
    if status == "MATCH" and any(row["status"] == "NEAR_TIE" for _, row in group):
        status = "NEAR_TIE"
    link = Link(entry.anchor, entry.source)
    verdict = Cell(status, status, link, tone_of(entry_exit_code(entry)))
    return Row((*(text_cell(part) for part in key), verdict, text_cell(summary, link)))


def _severity(code: ExitCode | None) -> int:
    return _WORST_FIRST.index(code) if code in _WORST_FIRST else len(_WORST_FIRST)


def prompt_table(ledger: Ledger) -> Table:
    """One row a prompt and pair, split by phase, with the forced numbers beside."""
    entries = ledger.of_kind("tokens")
    rows = rows_of(ledger, "tokens")
    return Table(
        name="tokens-prompts",
        title="Prompts",
        columns=(
            Column("prompt"),
            Column("candidate"),
            Column("status"),
            Column("prefix", True, "equal free-running prefix over generated tokens"),
            Column("prefill", hint="status of token 0"),
            Column("decode", hint="status of every later token, teacher-forced"),
            Column("what was found"),
            Column("forced top-1", True, "top-1 agreement on the oracle's prefix"),
            Column("max |Δz|", True, "largest difference of a logit"),
            Column("bound", True, "of max |Δz|; under the near-tie rule only where ids differ"),
            Column("noise N", True, "from runs without the candidate; strict modes have none"),
            Column("mean KL nats", numeric=True),
            Column("prompt tokens", numeric=True),
            Column("oracle"),
        ),
        rows=tuple(_prompt_row(entry, row) for entry, row in zip(entries, rows, strict=True)),
        empty="no tokens were compared",
    )


def _prompt_row(entry: Entry, row: dict[str, Any]) -> Row:
    link, rate = link_of(row), row["forced_match_rate"]
    prefill, decode = phase_texts(row["positions"])
    share = row["prefix_length"] / row["num_generated"] if row["num_generated"] else None
    error, bound = row["max_logit_error"], row["logit_bound"]
    # Under the near-tie rule (it has a noise) the bound excuses flips; it is no limit otherwise.
    strict = row["noise"] is None
    over = strict and error is not None and bound is not None and error > bound
    error_text = None if error is None else scientific(error)
    return Row(
        (
            text_cell(row["prompt"], link),
            text_cell(row["candidate"]),
            status_cell(entry),
            number_cell(share, f"{row['prefix_length']}/{row['num_generated']}", link),
            text_cell(prefill),
            text_cell(decode),
            text_cell(row["message"]),
            number_cell(rate, f"{rate:.1%}" if rate is not None else None, link),
            number_cell(error, error_text, link)._replace(tone=Tone.BAD if over else Tone.PLAIN),
            number_cell(bound, link=link),
            number_cell(row["noise"], link=link),
            number_cell(row["mean_kl_nats"], link=link),
            number_cell(row["prompt_length"] or None, str(row["prompt_length"]), link),
            text_cell(row["oracle"]),
        )
    )
