"""`neuron-harness bench-neuron`: the port's TTFT/TPOT matrix under the port's option names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.device_options import AllowFallback, OpsWord
from harness.cli.engine_options import (
    Checkpoint,
    CompileBackend,
    Cp,
    Device,
    EnforceEager,
    Ep,
    MaxModelLen,
    MaxNumBatchedTokens,
    MoeCapacity,
    NumKvBlocks,
)
from harness.cli.op_choice import with_ops
from harness.cli.session import DEFAULT_OUT, console, parse_ints, recording
from harness.core.engine_face import EngineSettings
from harness.core.sweep_spec import SweepSpec

__all__ = ["register"]

_MATRIX = "512,1024,2048,8192"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench-neuron")(bench_neuron)
    app.command("bench_neuron", hidden=True)(bench_neuron)


def bench_neuron(
    checkpoint: Checkpoint,
    cp: Cp = 1,
    ep: Ep = 0,
    max_model_len: MaxModelLen = 0,
    num_kv_blocks: NumKvBlocks = 0,
    max_num_batched_tokens: MaxNumBatchedTokens = 0,
    moe_capacity: MoeCapacity = 0,
    enforce_eager: EnforceEager = True,
    compile_backend: CompileBackend = "",
    input_len: Annotated[str, typer.Option("--input-len", "--input_len")] = _MATRIX,
    output_len: Annotated[int, typer.Option("--output-len", "--output_len")] = 128,
    repeats: Annotated[int, typer.Option(help="Measured requests per point.")] = 3,
    numerics: Annotated[str, typer.Option(help="fast, or trn2, exact, quantised on the CPU.")] = (
        "fast"
    ),
    device: Device = "cpu",
    ops: OpsWord = "",
    allow_fallback: AllowFallback = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_OUT,
    run: Annotated[Path | None, typer.Option(help="Resume this run.")] = None,
) -> None:
    """Batch 1, random prompts, greedy, ignore_eos: TTFT and TPOT by input length (port.md R20)."""
    from engine.environment import with_environment
    from harness.cli.checkpoint_place import checkpoint_directory
    from harness.cli.record_metrics import record_metrics
    from harness.cli.stage import run_stage
    from harness.cli.sweep import measure_sweep

    directory = checkpoint_directory("tiny-A", checkpoint)
    asked = EngineSettings(
        str(directory),
        cp=cp,
        ep=ep,
        numerics=numerics,
        max_model_len=max_model_len,
        num_kv_blocks=num_kv_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        moe_capacity=moe_capacity,
        enforce_eager=enforce_eager,
        compile_backend=compile_backend,
        device=device,
        allowed_fallbacks=tuple(allow_fallback or ()),
    )
    settings = with_ops(with_environment(asked), ops)
    _require_device(settings)
    spec = _spec(settings, parse_ints(input_len, "--input-len"), output_len, repeats)
    screen = console()
    with recording(out, run, backend=_backend(settings)) as store:
        code = run_stage(
            store, screen, "sweep", lambda: measure_sweep(store, screen, spec, directory)
        )
        record_metrics(store)
        screen.print(f"records: {store.directory}")
    raise typer.Exit(code)


def _require_device(settings: EngineSettings) -> None:
    """Say at once what is missing, not after a run directory was made."""
    from engine.device.neuron import require_device
    from harness.core.numerics import numerics_named

    require_device(settings.device, settings.num_ranks, numerics_named(settings.numerics))


def _spec(
    settings: EngineSettings, input_lens: tuple[int, ...], output_len: int, repeats: int
) -> SweepSpec:
    # Batch 1 of every batch there is; each prompt is drawn with a seed of its own (port.md R20).
    num_batches = settings.num_ranks // settings.cp
    return SweepSpec(
        "bench-neuron",
        input_lens=input_lens,
        output_len=output_len,
        cps=(settings.cp,),
        eps=(settings.ep,),
        numerics=(settings.numerics,),
        ops=(settings.ops,),
        num_repeats=repeats,
        num_warmups=num_batches,
        concurrency=num_batches,
        engine={
            "max_model_len": settings.max_model_len,
            "num_kv_blocks": settings.num_kv_blocks,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "token_bucket": settings.token_bucket,
            "context_buckets": settings.context_buckets,
            "moe_capacity": settings.moe_capacity,
            "enforce_eager": settings.enforce_eager,
            "compile_backend": settings.compile_backend,
            "device": settings.device,
            "allowed_fallbacks": settings.allowed_fallbacks,
        },
    )


def _backend(settings: EngineSettings) -> str:
    return "device" if settings.device == "neuron" else "interpret"
