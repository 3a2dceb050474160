"""`neuron-harness tokens`: does the model still say the same tokens?"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from harness.cli.engine_options import MoeCapacity
from harness.cli.record_metrics import record_metrics
from harness.cli.session import DEFAULT_OUT, console, parse_ints, progress_bar, recording
from harness.cli.stage import run_stage
from harness.core.engine_face import EngineSettings
from harness.core.errors import ExitCode, UsageError
from harness.core.status import worst_exit_code
from harness.core.suggest import near_names
from harness.core.token_suite import Prompt, TokenPair, TokenSuite

if TYPE_CHECKING:
    from harness.run.golden_cache import GoldenCache
    from harness.run.store import RunStore

__all__ = ["boundary_prompts", "match_tokens", "register"]

# model.md §9: what two settings of one mode may differ by when cp differs.
_CP_LOGIT_BOUND = 1e-9
_STRICT_MODES = ("exact", "quantised")
# Beside the op tables of a setting: what its tokens depend on.
_GOLDEN_SOURCE = ("engine", "harness.core")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tokens")(tokens)


def tokens(
    suite: Annotated[str, typer.Option(help="Name or file of a token suite.")] = "tiny",
    checkpoint: Annotated[Path | None, typer.Option(help="Default: the suite's own.")] = None,
    pair: Annotated[list[str] | None, typer.Option(help="Only this pair; repeatable.")] = None,
    cp: Annotated[str, typer.Option(help="Judge these cp against cp=1, e.g. 2,4.")] = "",
    ep: Annotated[
        str, typer.Option(help="Judge each --cp with these ep, e.g. 2,4; 0: the same as cp.")
    ] = "",
    moe_capacity: MoeCapacity = 0,
    prefill: Annotated[
        str, typer.Option(help="attention: judge it, at each --cp, against prompts as decode.")
    ] = "",
    ids: Annotated[str, typer.Option(help="Judge this prompt instead, e.g. 3,5,7.")] = "",
    prompt_len: Annotated[int, typer.Option(help="Judge a drawn prompt of this length.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate for it.")] = 16,
    boundaries: Annotated[
        bool,
        typer.Option("--boundaries", help="Judge prompts at every border of model and engine."),
    ] = False,
    goldens: Annotated[
        Path | None, typer.Option(help="Keep what oracles say there, and do not run them again.")
    ] = None,
    renew_goldens: Annotated[
        bool, typer.Option("--renew-goldens", help="Replace goldens of other source.")
    ] = False,
    mutation: Annotated[
        bool, typer.Option("--mutation", help="Put faults into the engine: are they found?")
    ] = False,
    backend: Annotated[str, typer.Option(help="interpret, simulate or device.")] = "interpret",
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
    run: Annotated[Path | None, typer.Option(help="Add to this run.")] = None,
) -> None:
    """Judge greedy tokens and logits of candidate settings against oracle settings."""
    from harness.cli.checkpoint_place import checkpoint_directory
    from suites.loader import load_token_suite

    if mutation:
        from harness.cli.token_mutation import run_mutation

        raise typer.Exit(run_mutation(checkpoint, out, run, suite))
    compared = _setting_pairs(cp, ep, moe_capacity, prefill)
    chosen = _narrowed(load_token_suite(suite), pair or [], compared)
    chosen = _with_prompt(chosen, ids, prompt_len, max_tokens)
    if boundaries and (ids or prompt_len):
        raise UsageError("--boundaries and --ids or --prompt-len are two sets of prompts; give one")
    screen = console()
    with recording(out, run, backend=backend) as store:
        directory = checkpoint_directory(chosen.checkpoint_variant, checkpoint)
        if boundaries:
            chosen = replace(chosen, prompts=boundary_prompts(chosen, directory, max_tokens))
        cache = _golden_cache(goldens, directory, renew=renew_goldens)
        code = run_stage(
            store,
            screen,
            "tokens",
            lambda: match_tokens(store, screen, chosen, directory, backend, cache),
        )
        record_metrics(store)
        screen.print(f"records: {store.directory}")
    raise typer.Exit(code)


def _golden_cache(directory: Path | None, checkpoint: Path, *, renew: bool) -> GoldenCache | None:
    from harness.run.checkpoint_id import checkpoint_id
    from harness.run.golden_cache import GoldenCache

    if directory is None:
        return None
    return GoldenCache(directory, checkpoint_id(checkpoint), _GOLDEN_SOURCE, renew=renew)


def match_tokens(
    store: RunStore,
    screen: Console,
    suite: TokenSuite,
    checkpoint: Path,
    backend: str,
    goldens: GoldenCache | None = None,
) -> ExitCode:
    """Run a suite on a checkpoint, record and print every verdict.

    Args:
        goldens: what oracles said before.

    Raises:
        MissingEvidenceError: the suite runs kernels and `backend` cannot.
    """
    from harness.cli.engine_factory import open_engine, runs_kernels
    from harness.cli.kernel_backend import select_backend
    from harness.run.tokens import match_key, quote, run_tokens

    if any(runs_kernels(settings) for settings in suite.settings):
        select_backend(backend)
    codes = []
    keys = [match_key(pair.name, one.name) for pair in suite.pairs for one in suite.prompts]
    store.plan("tokens", keys)
    with (
        progress_bar(screen) as tell,
        closing(run_tokens(suite.at(str(checkpoint)), open_engine, tell, goldens)) as judged,
    ):
        for one in judged:
            store.append("tokens", one.key, one.match)
            codes.append(one.match.status.exit_code)
            screen.print(
                f"  {one.match.status.value:<9} {one.pair.name}: {quote(one.match)}", markup=False
            )
    return worst_exit_code(codes)


def boundary_prompts(suite: TokenSuite, checkpoint: Path, max_tokens: int) -> tuple[Prompt, ...]:
    """Drawn prompts at every border that a setting of the suite has on this checkpoint.

    Raises:
        UsageError: a setting's limits do not fit the checkpoint.
    """
    from engine.config.boundaries import boundary_lengths
    from engine.config.limits import resolve_limits
    from engine.config.parse import load_model_config

    config = load_model_config(checkpoint)
    limits = [resolve_limits(settings, config) for settings in suite.settings]
    room = min(one.max_model_len for one in limits) - max_tokens
    found: dict[int, list[str]] = {}
    for one in limits:
        for length, name in boundary_lengths(config, one, max_tokens).items():
            if length <= room:  # every setting takes every prompt
                found.setdefault(length, []).extend(name.split(" "))
    return tuple(
        Prompt(
            f"{length}: {', '.join(dict.fromkeys(found[length]))}",
            max_tokens,
            length=length,
            seed=length,
        )
        for length in sorted(found)
    )


def _narrowed(suite: TokenSuite, names: list[str], compared: tuple[TokenPair, ...]) -> TokenSuite:
    """The pairs that were asked for: `compared` in place of the suite's where there are any."""
    if compared:
        suite = replace(suite, pairs=compared)
    known = [pair.name for pair in suite.pairs]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--pair {name!r} is not in suite {suite.name}{near_names(name, known)}"
            )
    if names:
        suite = replace(suite, pairs=tuple(pair for pair in suite.pairs if pair.name in names))
    return suite


def _setting_pairs(cp: str, ep: str, moe_capacity: int, prefill: str) -> tuple[TokenPair, ...]:
    """The settings asked for against cp=1 as decode, in each mode where ids must be equal."""
    pairs = []
    cps = parse_ints(cp, "--cp") if cp else (1,)
    eps = parse_ints(ep, "--ep") if ep else (0,)
    for mode in _STRICT_MODES:
        oracle = EngineSettings("", numerics=mode)
        for one, other in itertools.product(cps, eps):
            candidate = replace(
                oracle,
                cp=one,
                ep=other,
                moe_capacity=moe_capacity,
                prefill=prefill or oracle.prefill,
            )
            if candidate != oracle:
                name = f"{mode}-cp{one}{_beside_cp(candidate)}"
                pairs.append(
                    TokenPair(name, candidate, oracle, judge="equal", logit_bound=_CP_LOGIT_BOUND)
                )
    return tuple(pairs)


def _beside_cp(candidate: EngineSettings) -> str:
    """What else the name of a pair says, where it is not the usual."""
    parts = {
        f"-ep{candidate.ep}": candidate.ep not in (0, candidate.cp),
        f"-capacity{candidate.moe_capacity}": candidate.moe_capacity,
        f"-{candidate.prefill}": candidate.prefill != "as-decode",
    }
    return "".join(text for text, is_said in parts.items() if is_said)


def _with_prompt(suite: TokenSuite, ids: str, prompt_len: int, max_tokens: int) -> TokenSuite:
    if ids and prompt_len:
        raise UsageError("--ids and --prompt-len are two prompts; give one")
    if ids:
        prompt = Prompt("given", max_tokens, ids=parse_ints(ids, "--ids"))
    elif prompt_len:
        prompt = Prompt("drawn", max_tokens, length=prompt_len, seed=prompt_len)
    else:
        return suite
    return replace(suite, prompts=(prompt,))
