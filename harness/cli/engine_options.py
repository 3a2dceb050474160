"""The engine's options as commands share them; underscores and dashes are both accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.session import parse_ints
from harness.core.engine_face import REFERENCE_OPS, EngineSettings

__all__ = [
    "Checkpoint",
    "CompileBackend",
    "ContextBuckets",
    "Cp",
    "Device",
    "EnforceEager",
    "Ep",
    "Fp8Max",
    "MaxModelLen",
    "MaxNumBatchedTokens",
    "MoeCapacity",
    "NumKvBlocks",
    "NumThreads",
    "Numerics",
    "Ops",
    "PageSize",
    "Prefill",
    "Speculative",
    "TimeLimit",
    "TokenBucket",
    "engine_arguments",
    "engine_settings",
]

Checkpoint = Annotated[
    Path,
    typer.Option(
        "--checkpoint", "--model-name", "--model_name", help="Directory with config.json."
    ),
]
Numerics = Annotated[str, typer.Option(help="exact, quantised, trn2 or fast.")]
Cp = Annotated[int, typer.Option(help="Ranks the attention heads are sharded over.")]
Ep = Annotated[
    int,
    typer.Option(
        help="Ranks the experts are sharded over, a multiple of --cp; every cp ranks have a batch "
        "of their own. 0: the same as --cp."
    ),
]
MoeCapacity = Annotated[
    int,
    typer.Option(
        "--moe-capacity",
        "--moe_capacity",
        help="Rows of a prompt step an expert takes before its layer runs dense again; 0: all.",
    ),
]
EnforceEager = Annotated[
    bool,
    typer.Option(
        "--enforce-eager/--no-enforce-eager",
        "--enforce_eager/--no_enforce_eager",
        help="Op by op, or layers as compiled regions.",
    ),
]
CompileBackend = Annotated[
    str,
    typer.Option(
        "--compile-backend",
        "--compile_backend",
        help="Of regions: inductor, aten or fp8_as_uint8; default: the device's own.",
    ),
]
Ops = Annotated[
    list[str] | None,
    typer.Option(help="references, kernels, or op-table targets, the last laid on top."),
]
Speculative = Annotated[str, typer.Option(help="dspark drafts with the mtp stages.")]
Device = Annotated[str, typer.Option(help="cpu, or neuron for NeuronCores.")]
Fp8Max = Annotated[int, typer.Option("--fp8-max", "--fp8_max", help="240 or 448; 0: the mode's.")]
MaxModelLen = Annotated[int, typer.Option("--max-model-len", "--max_model_len")]
NumKvBlocks = Annotated[int, typer.Option("--num-kv-blocks", "--num_kv_blocks")]
MaxNumBatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", "--max_num_batched_tokens")
]
TokenBucket = Annotated[int, typer.Option("--token-bucket", "--token_bucket")]
ContextBuckets = Annotated[
    str, typer.Option("--context-buckets", "--context_buckets", help="e.g. 2048,4096.")
]
PageSize = Annotated[int, typer.Option("--page-size", "--page_size", help="Tokens of a KV page.")]
Prefill = Annotated[
    str, typer.Option(help="as-decode, or attention: prompt chunks in prefill steps of their own.")
]
NumThreads = Annotated[int, typer.Option("--num-threads", "--num_threads", help="Per rank.")]
TimeLimit = Annotated[float, typer.Option(help="A rank silent for so long ends the run.")]

_NOT_PLAIN = ("checkpoint", "ops", "context_buckets", "allowed_fallbacks")


def engine_settings(options: Mapping[str, Any]) -> EngineSettings:
    """Settings from a command's parameters; those that are no engine option are left out.

    Raises:
        UsageError: a value that EngineSettings refuses, or buckets that are no numbers.
    """
    names = {item.name for item in dataclasses.fields(EngineSettings)} - set(_NOT_PLAIN)
    buckets = options.get("context_buckets", "")
    return EngineSettings(
        str(options["checkpoint"]),
        ops=tuple(options.get("ops") or REFERENCE_OPS),
        allowed_fallbacks=tuple(options.get("allowed_fallbacks") or ()),
        context_buckets=parse_ints(buckets, "--context-buckets") if buckets else (),
        **{name: value for name, value in options.items() if name in names},
    )


def engine_arguments(settings: EngineSettings) -> list[str]:
    """The command-line options that give these settings again."""
    arguments = ["--checkpoint", settings.checkpoint]
    for target in settings.ops:
        arguments += ["--ops", target]
    for name in settings.allowed_fallbacks:
        arguments += ["--allowed-fallbacks", name]
    if settings.context_buckets:
        arguments += ["--context-buckets", ",".join(map(str, settings.context_buckets))]
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if item.name in _NOT_PLAIN or value == item.default:
            continue
        name = item.name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments += [f"--{name}", str(value)]
    return arguments
