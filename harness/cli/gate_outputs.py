"""One gate, three readers: gate.json for programs, junit.xml for CI systems, summary.md for GitHub.

All three come from the records of a run that holds nothing but the gate's verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.cli.report import write_junit, write_summary
from harness.cli.session import command_line
from harness.core.metric import GateVerdict
from harness.core.record import strict_json

__all__ = ["write_gate_outputs"]


def write_gate_outputs(
    screen: Console, directory: Path, verdicts: Sequence[GateVerdict]
) -> list[Path]:
    """Write the verdicts into a new run directory, and on GitHub into the job's summary.

    Raises:
        UsageError: the directory exists already or cannot be written.
    """
    from harness.run.environment import fingerprint
    from harness.run.gates import gate_exit_code
    from harness.run.store import new_run
    from reports.ledger import read_run
    from reports.render import write_text

    environment = fingerprint(backend="")
    with new_run(
        directory.parent, command=command_line(), environment=environment, run_id=directory.name
    ) as store:
        store.append_all("gate", {verdict.metric: verdict for verdict in verdicts})
    body = {"exit_code": int(gate_exit_code(verdicts)), "verdicts": list(verdicts)}
    ledger = read_run(directory)
    written = [
        write_text(directory / "gate.json", strict_json(body) + "\n"),
        *write_junit(ledger, directory),
        *write_summary(ledger, directory),
    ]
    screen.print("  " + ", ".join(map(str, written)), markup=False)
    return written
