"""`neuron-harness ab`: two checkouts or two settings in turns on this machine, and the verdict."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.session import DEFAULT_OUT, console, progress_bar
from harness.core.errors import ExitCode, UsageError

__all__ = ["register", "run_side"]

# What a child may end with and still have measured: points that failed are MISSING in the gate.
_MEASURED = (ExitCode.PASS, ExitCode.MISMATCH, ExitCode.RANK)
_MAIN = "from harness.cli.main import main; main()"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ab")(ab)


def ab(
    baseline: Annotated[str, typer.Option(help='Options of `sweep`, e.g. "--cp 1".')] = "",
    candidate: Annotated[str, typer.Option(help='Options of `sweep`, e.g. "--cp 2".')] = "",
    baseline_checkout: Annotated[
        Path | None, typer.Option(help="Checkout that runs the baseline; default: this one.")
    ] = None,
    candidate_checkout: Annotated[
        Path | None, typer.Option(help="Checkout that runs the candidate; default: this one.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Default: tiny-A.")] = None,
    pairs: Annotated[int, typer.Option(help="Pairs of runs; below 10 nothing is judged.")] = 10,
    floor_ms: Annotated[float, typer.Option(help="Smallest change that counts.")] = 0.05,
    gate: Annotated[str, typer.Option(help="A gate; default: TTFT and TPOT of all points.")] = "",
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
) -> None:
    """Sweep both sides in turns, then judge the pairs; verdicts as gate.json, JUnit, summary."""
    from harness.cli.checkpoint_place import checkpoint_directory

    here = Path(__file__).parents[2]
    sides = {
        "baseline": (_checkout(baseline_checkout or here), shlex.split(baseline)),
        "candidate": (_checkout(candidate_checkout or here), shlex.split(candidate)),
    }
    if sides["baseline"] == sides["candidate"] and not (baseline_checkout or candidate_checkout):
        raise UsageError("both sides are the same: give --candidate, or a checkout of each side")
    if pairs < 2:
        raise UsageError(f"--pairs {pairs}: a pair of runs says nothing alone; 10 are needed")
    root = _new_root(out)
    directory = checkpoint_directory("tiny-A", checkpoint).resolve()
    screen = console()
    _measure(sides, pairs, root, directory)
    code = _judge(root, floor_ms, gate)
    screen.print(f"runs: {root}", markup=False)
    raise typer.Exit(code)


def run_side(checkout: Path, options: Sequence[str], checkpoint: Path, out: Path) -> None:
    """One sweep of a checkout in a process of its own, recorded below `out`.

    Raises:
        UsageError: the sweep could not be carried out; quotes the last line it wrote.
    """
    command = [sys.executable, "-c", _MAIN, "sweep", *options]
    command += ["--checkpoint", str(checkpoint), "--out", str(out.resolve())]
    # The interpreter looks in the working directory first: that is how a checkout is chosen.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in _MEASURED:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UsageError(
            f"{checkout}: `sweep {shlex.join(options)}` ended with {done.returncode}: "
            f"{said[-1] if said else 'no output'}"
        )


def _measure(
    sides: dict[str, tuple[Path, list[str]]], num_pairs: int, root: Path, checkpoint: Path
) -> None:
    from harness.run.interleave import read_interleaved, turns

    with progress_bar(console()) as tell:
        for done, (pair, side) in enumerate(turns(num_pairs)):
            if done == len(sides):
                # What cannot be compared is known after one pair, not after all of them.
                read_interleaved(root)
            tell(f"pair {pair + 1}, {side}", done, 2 * num_pairs)
            checkout, options = sides[side]
            run_side(checkout, options, checkpoint, root / side)


def _judge(root: Path, floor_ms: float, gate: str) -> ExitCode:
    from harness.cli.gate import print_verdicts
    from harness.cli.gate_outputs import write_gate_outputs
    from harness.run.gates import gate_exit_code, judge
    from harness.run.interleave import paired_spec, read_interleaved
    from suites.loader import load_gate_suite

    base, candidate = read_interleaved(root)
    spec = load_gate_suite(gate) if gate else paired_spec(base, floor_ms)
    verdicts = judge(spec, base, candidate)
    screen = console()
    print_verdicts(screen, verdicts)
    for verdict in verdicts:
        if spec.primary_named(verdict.metric):
            screen.print(
                f"  {verdict.status.value:<12} {verdict.metric}: {verdict.message}", markup=False
            )
    write_gate_outputs(screen, root / "verdict", verdicts)
    return gate_exit_code(verdicts)


def _checkout(directory: Path) -> Path:
    if not (directory / "harness" / "cli" / "main.py").is_file():
        raise UsageError(f"{directory}: this is no checkout of neuron-harness")
    return directory.resolve()


def _new_root(out: Path) -> Path:
    from harness.run.clock import SystemClock

    root = out / f"ab-{SystemClock().now():%Y%m%d-%H%M%S}"
    try:
        root.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{root}: cannot be written ({error.strerror}); choose --out") from error
    return root
