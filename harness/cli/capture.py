"""`neuron-harness capture`: real inputs of ops, from an engine run, for `parity --replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.cli.session import console, parse_ints
from harness.core.errors import UsageError
from harness.core.ops import op_named

if TYPE_CHECKING:
    from harness.run.capture import Capture

__all__ = ["TARGET", "register", "watching_table"]

TARGET = f"{__name__}:TABLE"
REFERENCE = "references.op_table:TABLE"
# Dtypes and grid that kernels take.
_KERNEL_GRID: Literal[240] = 240
_running: Capture | None = None


def __getattr__(name: str) -> Any:
    """`TABLE`, the target text an engine resolves: the table of the capture that runs."""
    if name == "TABLE":
        return watching_table()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def watching_table() -> Any:
    """The table of the running capture.

    Raises:
        UsageError: none runs in this process.
    """
    if _running is None:
        raise UsageError(f"{TARGET} is only there while `neuron-harness capture` runs")
    return _running.table()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capture")(capture)


def capture(
    op: Annotated[list[str], typer.Option(help="An op to watch; repeatable.")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="Directory with config.json; default: a tiny one.")
    ] = None,
    ids: Annotated[str, typer.Option(help="Prompt as token ids.")] = "1,2,3,4,5,6,7,8",
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 2,
    calls: Annotated[int, typer.Option(help="Calls kept of each set of shapes.")] = 1,
    prefill: Annotated[
        str, typer.Option(help="as-decode, or attention: the path of its own.")
    ] = "as-decode",
    out: Annotated[Path, typer.Option(help="Where the bundles go.")] = Path("captures"),
) -> None:
    """Run a prompt on the references and store what the chosen ops were called with."""
    from harness.cli.checkpoint_place import checkpoint_directory
    from harness.core.op_table import resolve_op_table
    from harness.run.capture import Capture, described
    from suites.loader import load_op_suite

    tolerances: dict[str, Any] = {}
    for name in op:
        op_named(name)
        tolerances |= load_op_suite(name).tolerances
    if calls < 1:
        raise UsageError(f"--calls {calls}: at least 1 is kept")
    reference = resolve_op_table([REFERENCE])
    taken = Capture(reference, tuple(op), calls)
    place = str(checkpoint_directory("tiny-A", checkpoint))
    _generate(taken, place, parse_ints(ids, "--ids"), max_tokens, prefill)
    paths = taken.write(out, reference, tolerances, _KERNEL_GRID)
    screen = console()
    for name, number in described(taken.kept).items():
        screen.print(f"{name}: {number} calls")
    screen.print(f"{len(paths)} bundles; judge them with")
    screen.print(f"neuron-harness parity --replay {out}", markup=False)


def _generate(
    taken: Capture, checkpoint: str, ids: tuple[int, ...], max_tokens: int, prefill: str
) -> None:
    """One request on one rank, in this process, while `taken` watches."""
    global _running
    from engine.llm import LLM
    from harness.core.engine_face import EngineSettings
    from harness.core.numerics import FAST

    settings = EngineSettings(
        checkpoint,
        numerics=FAST.name,
        fp8_max=_KERNEL_GRID,
        ops=(REFERENCE, TARGET),
        num_threads=1,
        prefill=prefill,
    )
    _running = taken
    try:
        with LLM(settings) as engine:
            engine.generate([ids], max_tokens=max_tokens)
    finally:
        _running = None
