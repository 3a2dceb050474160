"""`neuron-harness bringup`: one op, all ops, one layer, ranks on tiny, a slice, the real model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.session import DEFAULT_OUT, command_line, console, parse_ranges
from harness.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from harness.run.bringup import Ran, Stage
    from harness.run.store import RunStore

__all__ = ["BringupPlan", "register", "stages_of"]

_BACKENDS = ("interpret", "simulate", "device")
_SHOWN_ON = {
    "cpu-interpreter": "this CPU (bundled interpreter)",
    "official-simulator": "this CPU (official simulator)",
    "device": "a device",
    "stand-in": "a stand-in (module doubles), which is no device",
}
# Of fewer positions the mean KL says little: on a random checkpoint one of them moves it.
_MAX_TOKENS = 16
_TINY_HEADS = 8  # of tiny-A; beyond, tiny-D has 64
_SUITE = """description = "bring-up: kernels against references, cp={cp}"
checkpoint = "{variant}"

[[prompts]]
name = "short"
length = 12
seed = 41
max_tokens = {max_tokens}

[settings.oracle]
numerics = "fast"
fp8_max = 240

[settings.split-sums]
numerics = "fast"
fp8_max = 240
cp = 2
time_limit_s = {time_limit_s}

[settings.candidate]
numerics = "fast"
cp = {cp}
device = "{device}"
time_limit_s = {time_limit_s}
ops = ["references.op_table:TABLE", "kernels.op_table:TABLE"]

[[pairs]]
name = "kernels-cp{cp}"
candidate = "candidate"
oracle = "oracle"
noise = ["split-sums"]
judge = "near_tie"
"""


@dataclass(frozen=True, slots=True)
class BringupPlan:
    """What a bring-up is made of.

    Attributes:
        checkpoint: the real one, last in line.
        work: where suites, tiny checkpoints and the slice are kept.
        layers, experts: of the slice, as text for `checkpoint slice`; "" chooses.
        engram_vocab_size: the slice's; 0 keeps the tables whole.
    """

    checkpoint: Path
    work: Path
    cp: int
    ep: int
    backend: str
    layers: str = ""
    experts: str = ""
    engram_vocab_size: int = 0
    max_tokens: int = _MAX_TOKENS
    time_limit_s: float = 3600.0

    @property
    def device(self) -> str:
        """Where the engine's candidate runs."""
        return "neuron" if self.backend == "device" else "cpu"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bringup")(bringup)


def bringup(
    checkpoint: Annotated[Path, typer.Option(help="The real checkpoint, last in line.")],
    cp: Annotated[int, typer.Option(help="Ranks in the end.")] = 64,
    ep: Annotated[int, typer.Option(help="Ranks of the expert group; 0: the same.")] = 0,
    until: Annotated[str, typer.Option(help="Stop after this stage.")] = "",
    backend: Annotated[str, typer.Option(help="device, simulate or interpret.")] = "device",
    slice_layers: Annotated[str, typer.Option(help="Of the slice; empty chooses.")] = "",
    slice_experts: Annotated[str, typer.Option(help="Of the slice; empty chooses.")] = "",
    slice_engram: Annotated[int, typer.Option(help="Its Engram vocabulary; 0: whole.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="To generate in each stage.")] = _MAX_TOKENS,
    time_limit_s: Annotated[float, typer.Option(help="For one answer of a rank.")] = 3600.0,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
) -> None:
    """Bring the port up stage by stage; what is green stays green, the first red stops."""
    from harness.run.bringup import carry_out, run_logged
    from harness.run.bringup import until as up_to
    from harness.run.checkpoint_id import checkpoint_id

    if backend not in _BACKENDS:
        raise UsageError(f"--backend {backend!r}: choose {', '.join(_BACKENDS)}")
    if not checkpoint.is_dir():
        raise UsageError(f"--checkpoint {checkpoint}: there is no such directory")
    store = _open(out, f"bringup-{backend}-cp{cp}", backend)
    plan = BringupPlan(
        checkpoint.resolve(),
        store.directory.resolve() / "work",
        cp,
        ep,
        backend,
        slice_layers,
        slice_experts,
        slice_engram,
        max_tokens,
        time_limit_s,
    )
    screen = console()
    shown_on = _SHOWN_ON[str(store.environment["origin"])]
    screen.print(f"bring-up on {shown_on}: {store.directory}", markup=False)
    with store:
        stages = up_to(stages_of(plan), until)
        code = ExitCode.PASS
        for ran in carry_out(stages, store, checkpoint_id(checkpoint), run_logged):
            screen.print(_line(ran), markup=False)
            if not ran.is_green and ran.outcome is not None:
                code = ExitCode(ran.outcome.exit_code)
    if code is ExitCode.PASS:
        screen.print(f"all {len(stages)} stages are green, shown on {shown_on}")
    raise typer.Exit(code)


def stages_of(plan: BringupPlan) -> tuple[Stage, ...]:
    """The stages in order; writes the token suites they name.

    Raises:
        InputError: the checkpoint's configuration cannot be read.
        UsageError: the working directory cannot be written, or cp does not fit a tiny checkpoint.
    """
    from harness.run.bringup import Stage

    _make(plan.work)
    backend = ("--backend", plan.backend, "--out", str(plan.work / "runs"))
    # A case's first run on a device compiles: minutes, where the interpreter takes seconds.
    tier = ("--tier", "device", "--time-limit-s", str(plan.time_limit_s))
    every = tuple(part for name in _all_suites() for part in ("--suite", name))
    stages = [
        Stage("doctor", "the host", (("doctor", "--checkpoint", str(plan.checkpoint)),)),
        Stage("one-op", "rms_norm", (("parity", "--op", "rms_norm", *tier, *backend),)),
        Stage("all-ops", "every op, tier device", (("parity", *every, *tier, *backend),)),
        Stage("one-layer", "one attention layer with its cache", _one_layer(plan)),
    ]
    stages += [_tiny_stage(plan, ranks) for ranks in sorted({1, 2, 4, plan.cp}) if ranks <= plan.cp]
    stages += [
        Stage("slice", "a slice of the real weights", _slice(plan)),
        Stage("real", "the real checkpoint", (_generate(plan),)),
    ]
    return tuple(stages)


def _all_suites() -> list[str]:
    import suites

    folder = Path(str(suites.__file__)).parent / "ops"
    return sorted(path.stem for path in folder.glob("*.toml"))


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written ({error.strerror})") from error


def _tiny_stage(plan: BringupPlan, ranks: int) -> Stage:
    from harness.run.bringup import Stage

    variant = "tiny-A" if ranks <= _TINY_HEADS else "tiny-D"
    place = plan.work / variant
    commands = (
        ("checkpoint", "make", variant, str(place)),
        _tokens(plan, f"ranks-{ranks}", place, variant, ranks),
    )
    return Stage(f"ranks-{ranks}", f"{variant} on {ranks} ranks", commands)


def _one_layer(plan: BringupPlan) -> tuple[tuple[str, ...], ...]:
    tiny, layer = plan.work / "tiny-A", plan.work / "one-layer"
    cut = ("checkpoint", "slice", str(tiny), str(layer), "--layers", "2", "--experts", "0-7")
    return (
        ("checkpoint", "make", "tiny-A", str(tiny)),
        (*cut, "--reuse"),
        _tokens(plan, "one-layer", layer, "tiny-A", 1),
    )


def _slice(plan: BringupPlan) -> tuple[tuple[str, ...], ...]:
    layers, experts = _slice_shape(plan)
    # Another selection is another directory: a slice is never changed under its name.
    selection = f"slice-{layers}-{experts}-{plan.engram_vocab_size}".replace(",", "_")
    place = plan.work / selection
    table = plan.engram_vocab_size
    cut = (
        *("checkpoint", "slice", str(plan.checkpoint), str(place)),
        *("--layers", layers, "--experts", experts, "--reuse"),
        *(("--engram-vocab-size", str(table)) if table else ()),
    )
    verify = ("checkpoint", "verify", str(place))
    return (cut, verify, _tokens(plan, "slice", place, "tiny-A", plan.cp))


def _slice_shape(plan: BringupPlan) -> tuple[str, str]:
    """Of the published model 0-3,14,20: layers without a cache, the first that own and that read
    one, and the last two owners; and as many experts as a core can hold."""
    text = _text_config(plan.checkpoint)
    owners, num_experts = text["kv_source_layer_ids"], int(text["n_routed_experts"])
    chosen = ",".join(map(str, sorted({*range(owners[0] + 2), *owners[-2:]})))
    layers = plan.layers or chosen
    parse_ranges(layers, "--slice-layers")
    return layers, plan.experts or f"0-{min(16, num_experts) - 1}"


def _text_config(checkpoint: Path) -> dict[str, Any]:
    from engine.config.parse import load_model_config, model_config_file

    load_model_config(checkpoint)
    found = json.loads(model_config_file(checkpoint).read_text(encoding="utf-8"))
    return dict(found["text_config"])


def _tokens(
    plan: BringupPlan, name: str, checkpoint: Path, variant: str, ranks: int
) -> tuple[str, ...]:
    suite = plan.work / f"{name}.toml"
    suite.write_text(
        _SUITE.format(
            cp=ranks,
            variant=variant,
            device=plan.device,
            max_tokens=plan.max_tokens,
            time_limit_s=float(plan.time_limit_s),
        ),
        encoding="utf-8",
    )
    out = ("--backend", plan.backend, "--out", str(plan.work / "runs"))
    return ("tokens", "--suite", str(suite), "--checkpoint", str(checkpoint), *out)


def _generate(plan: BringupPlan) -> tuple[str, ...]:
    options = ("--ids", "3,5,7,11,13", "--max-tokens", str(plan.max_tokens), "--ignore-eos")
    layout = ("--cp", str(plan.cp), "--ep", str(plan.ep), "--device", plan.device)
    limit = ("--time-limit-s", str(plan.time_limit_s))
    where = ("generate", "--checkpoint", str(plan.checkpoint))
    return (*where, *options, *layout, *limit, "--ops", "kernels", "--json")


def _open(out: Path, run_id: str, backend: str) -> RunStore:
    """The bring-up's run directory: a new one, or the one of an earlier start."""

    from harness.run.environment import fingerprint
    from harness.run.store import new_run, open_run

    environment = fingerprint(backend=backend)
    if (out / run_id / "run.json").is_file():
        return open_run(out / run_id, environment=environment)
    return new_run(out, command=command_line(), environment=environment, run_id=run_id)


def _line(ran: Ran) -> str:
    head = f"{ran.stage.name:<10} {ran.stage.purpose}"
    if ran.outcome is None:
        return f"  green     {head} (before)"
    if ran.is_green:
        return f"  green     {head} in {ran.outcome.elapsed_s:.1f} s"
    lines = [f"  RED       {head}: {ran.outcome.status} after {ran.outcome.elapsed_s:.1f} s"]
    lines += [f"    {line}" for line in ran.outcome.message.splitlines()]
    lines += [f"  log: {ran.outcome.log}", *(f"  replay: {line}" for line in ran.outcome.replays)]
    return "\n".join(lines)
