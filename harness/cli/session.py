"""What every command that records shares: the run directory, the console and the bar."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.core.errors import MissingEvidenceError, UsageError

if TYPE_CHECKING:
    from harness.run.store import RunStore

__all__ = [
    "DEFAULT_OUT",
    "Tell",
    "command_line",
    "console",
    "parse_ints",
    "parse_ranges",
    "progress_bar",
    "recording",
]

DEFAULT_OUT = Path("runs")
_NO_EVIDENCE = {"run.json", "plan.jsonl", "stage.jsonl"}

# Called with what is being done, and how many of how many steps are behind.
Tell = Callable[[str, int, int], None]


def console() -> Console:
    """Where verdicts are printed; plain text where no terminal listens."""
    return Console(highlight=False, soft_wrap=True)


def command_line() -> list[str]:
    """What was typed, without the place this machine keeps the program in."""
    return ["neuron-harness", *sys.argv[1:]]


@contextmanager
def recording(out: Path, run: Path | None, *, backend: str = "interpret") -> Iterator[RunStore]:
    """A new run below `out`, or the existing run `run` to add to.

    A new run that ended before it recorded anything leaves no directory: the request was wrong,
    or nothing could be judged.

    Raises:
        UsageError: the directory cannot be written.
        InputError: `run` is no run.
    """
    from harness.run.environment import fingerprint
    from harness.run.store import new_run, open_run

    environment = fingerprint(backend=backend)
    is_first_of_root = not out.exists()
    if run is not None:
        store = open_run(run, environment=environment)
    else:
        store = new_run(out, command=command_line(), environment=environment)
    try:
        with store:
            yield store
    except KeyboardInterrupt:
        print(f"interrupted; finished work is kept in {store.directory}", file=sys.stderr)
        raise
    except (UsageError, MissingEvidenceError):
        if run is None:
            _discard_unused(store.directory)
            if is_first_of_root and not any(out.iterdir()):
                out.rmdir()
        raise


def _discard_unused(directory: Path) -> None:
    """Remove a run that holds no more than its intentions and the stage that was refused."""
    stages = directory / "stage.jsonl"
    num_stages = stages.read_text(encoding="utf-8").count("\n") if stages.exists() else 0
    if num_stages <= 1 and {path.name for path in directory.iterdir()} <= _NO_EVIDENCE:
        shutil.rmtree(directory)


@contextmanager
def progress_bar(screen: Console) -> Iterator[Tell]:
    """A bar on a terminal, nothing elsewhere: logs stay readable."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("starting", total=None)

        def tell(description: str, done: int, total: int) -> None:
            progress.update(task, description=description, completed=done, total=total)

        yield tell


def parse_ints(text: str, option: str) -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4).

    Raises:
        UsageError: an entry is no whole number; names the option.
    """
    values = []
    for entry in text.split(","):
        try:
            values.append(int(entry))
        except ValueError:
            raise UsageError(
                f"{option} {text!r}: {entry!r} is no whole number; write them as 1,2,4"
            ) from None
    return tuple(values)


def parse_ranges(text: str, option: str) -> tuple[int, ...]:
    """ "0-3,14" -> (0, 1, 2, 3, 14), ascending.

    Raises:
        UsageError: an entry is no number and no range; names the option.
    """
    found: set[int] = set()
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-")
        bounds = parse_ints(f"{first},{last}" if dash else f"{first},{first}", option)
        if bounds[0] > bounds[1]:
            raise UsageError(f"{option} {text!r}: {entry!r} runs backwards; write it as 0-3")
        found.update(range(bounds[0], bounds[1] + 1))
    return tuple(sorted(found))
