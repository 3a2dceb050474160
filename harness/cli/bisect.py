"""`neuron-harness bisect`: in which layer and op do two settings part?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.cli.session import console, parse_ints
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode, UsageError
from harness.core.suggest import near_names
from harness.core.token_suite import Prompt, TokenPair

if TYPE_CHECKING:
    from harness.run.bisect import Bisection, Parting

__all__ = ["bisect_settings", "print_bisection", "register"]

_NOISE_CP = 2
_LAYER_HEADINGS = ("layer", "error", "noise", "bound", "")
_OP_HEADINGS = ("op", "swapped in", "error", "noise", "bound", "")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bisect")(bisect)


def bisect(
    suite: Annotated[str, typer.Option(help="Token suite that names the pair.")] = "tiny",
    pair: Annotated[str, typer.Option(help="Pair of the suite.")] = "kernels",
    candidate_ops: Annotated[
        list[str] | None,
        typer.Option(help="Judge the oracle with this op table on top instead; repeatable."),
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Default: the suite's own.")] = None,
    ids: Annotated[str, typer.Option(help="Prompt, e.g. 3,5,7; default: drawn.")] = "",
    prompt_len: Annotated[int, typer.Option(help="Length of a drawn prompt.")] = 24,
    backend: Annotated[str, typer.Option(help="interpret, simulate or device.")] = "interpret",
) -> None:
    """Find the first diverging layer and op of a pair; exit 1 where there is one."""
    from harness.cli.checkpoint_place import checkpoint_directory
    from harness.cli.engine_factory import runs_kernels
    from harness.cli.kernel_backend import select_backend
    from suites.loader import load_token_suite

    chosen = load_token_suite(suite)
    directory = str(checkpoint_directory(chosen.checkpoint_variant, checkpoint))
    one = _pair_named(chosen.pairs, pair, suite).at(directory)
    candidate = one.candidate
    if candidate_ops:
        candidate = replace(one.oracle, ops=(*one.oracle.ops, *candidate_ops))
    if runs_kernels(candidate):
        select_backend(backend)
    given = parse_ints(ids, "--ids") if ids else ()
    prompt = Prompt("bisect", 1, ids=given, length=0 if given else prompt_len, seed=prompt_len)
    screen = console()
    screen.print(f"oracle {one.oracle.label}; candidate {candidate.label}", markup=False)
    found = bisect_settings(one.oracle, candidate, prompt)
    print_bisection(screen, found)
    raise typer.Exit(ExitCode.MISMATCH if found.parts else ExitCode.PASS)


def bisect_settings(oracle: EngineSettings, candidate: EngineSettings, prompt: Prompt) -> Bisection:
    """Run both settings, and the oracle with its sums split over two ranks, in this process.

    Raises:
        UsageError: one of them runs compiled regions.
    """
    from harness.cli.engine_capture import capture_prompt, require_eager
    from harness.cli.engine_factory import fitting_threads
    from harness.cli.fault_cases import open_sound
    from harness.core.numerics import numerics_named
    from harness.core.op_table import resolve_op_table
    from harness.run.bisect import bisect as judge

    require_eager(oracle)
    require_eager(candidate)
    threads = fitting_threads(oracle)
    noisy = replace(oracle, cp=1 if oracle.cp > 1 else _NOISE_CP, ep=0)
    right, other, wrong = (
        replace(one, num_threads=one.num_threads or threads) for one in (oracle, noisy, candidate)
    )
    with open_sound(right) as engine:
        ids = prompt.token_ids(engine.vocab_size)
        expected = capture_prompt(engine, ids)
    with open_sound(other) as engine:
        noise = capture_prompt(engine, ids, expected.streams)
    with open_sound(wrong) as engine:
        found = capture_prompt(engine, ids, expected.streams)
    swapped = None
    if oracle.ops != candidate.ops:
        with open_sound(right) as engine:
            table = resolve_op_table(candidate.ops)
            swapped = capture_prompt(engine, ids, swapped=table)
    fp64 = numerics_named(oracle.numerics).accumulate == "float64"
    return judge(expected, noise, found, swapped, fp64=fp64)


def print_bisection(screen: Console, found: Bisection) -> None:
    """Errors by layer, errors by op of the first that parts, and the verdict in a line."""
    layers = Table(title="Streams after each layer", title_justify="left", box=SIMPLE_HEAD)
    ops = Table(title="Ops of the first layer that parts", title_justify="left", box=SIMPLE_HEAD)
    for table, headings in ((layers, _LAYER_HEADINGS), (ops, _OP_HEADINGS)):
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for layer, one in found.layers.items():
        layers.add_row(str(layer), *_cells(one))
    for call, one in found.calls.items():
        alone = found.alone.get(call)
        swapped = "-" if alone is None else f"{alone.error:.2e}"
        ops.add_row(f"{call.op} #{call.occurrence}", swapped, *_cells(one))
    screen.print(layers)
    if found.parts:
        screen.print(ops)
    screen.print(_sentence(found), markup=False)


def _sentence(found: Bisection) -> str:
    if found.desync is not None:
        layer, rank = found.desync
        return f"rank {rank} holds other streams than rank 0 after layer {layer}"
    if not found.parts:
        return "no layer and no op parts by more than the order of sums explains"
    lines = []
    if found.call is not None:
        one = (found.alone if _blames_alone(found) else found.calls)[found.call]
        lines.append(
            f"first: {found.call}: error {one.error:.3g}, expected noise {one.noise:.3g}, "
            f"bound {one.bound:.3g}"
        )
    elif found.layer is not None:
        lines.append(f"first: layer {found.layer}; none of its ops parts: what lies between them")
    if found.unpaired is not None:
        lines.append(f"only one side calls {found.unpaired}")
    return "\n".join(lines)


def _blames_alone(found: Bisection) -> bool:
    return any(one.is_beyond for one in found.alone.values())


def _cells(one: Parting) -> list[str]:
    mark = "PARTS" if one.is_beyond else ""
    return [f"{one.error:.2e}", f"{one.noise:.2e}", f"{one.bound:.2e}", mark]


def _pair_named(pairs: tuple[TokenPair, ...], name: str, suite: str) -> TokenPair:
    known = {pair.name: pair for pair in pairs}
    if name not in known:
        raise UsageError(f"--pair {name!r} is not in suite {suite}{near_names(name, known)}")
    return known[name]
