"""`neuron-harness serve`: the OpenAI-compatible server (port.md R21)."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.session import parse_ints
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["register"]

_KEY_VARIABLE = "NEURON_HARNESS_API_KEY"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    checkpoint: Annotated[
        Path,
        typer.Option(
            "--checkpoint", "--model-name", "--model_name", help="Directory with config.json."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    numerics: Annotated[str, typer.Option(help="exact, quantised, trn2 or fast.")] = "fast",
    cp: Annotated[int, typer.Option(help="Ranks the attention heads are sharded over.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks of the expert group; 0: the same.")] = 0,
    speculative: Annotated[str, typer.Option(help="dspark drafts with the mtp stages.")] = "",
    max_model_len: Annotated[int, typer.Option("--max-model-len", "--max_model_len")] = 0,
    num_kv_blocks: Annotated[int, typer.Option("--num-kv-blocks", "--num_kv_blocks")] = 0,
    max_num_batched_tokens: Annotated[
        int, typer.Option("--max-num-batched-tokens", "--max_num_batched_tokens")
    ] = 0,
    context_buckets: Annotated[str, typer.Option(help="e.g. 2048,4096.")] = "",
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Instead of the checkpoint's path; may be repeated.")
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Sequences that may wait; 429 past it.")] = 256,
    max_body_mib: Annotated[float, typer.Option(help="Largest request body; 413 past it.")] = 8.0,
    grace_s: Annotated[float, typer.Option(help="What runs may end within it.")] = 30.0,
    log_prompts: Annotated[bool, typer.Option(help="Show prompt ids in the log.")] = False,
) -> None:
    """Serve until Ctrl-C or SIGTERM. NEURON_HARNESS_API_KEY, if set, is asked of every client."""
    if max_queue < 0 or max_body_mib <= 0:
        raise UsageError(f"--max-queue {max_queue} --max-body-mib {max_body_mib}: must be positive")
    from engine import LLM
    from engine.serve.app import ServeOptions
    from engine.serve.runner import listen_on
    from engine.serve.runner import serve as run_server

    settings = EngineSettings(
        str(checkpoint),
        cp=cp,
        ep=ep,
        numerics=numerics,
        speculative=speculative,
        max_model_len=max_model_len,
        num_kv_blocks=num_kv_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        context_buckets=parse_ints(context_buckets, "--context-buckets") if context_buckets else (),
    )
    options = ServeOptions(
        model_names=tuple(served_model_name or ()),
        max_queue=max_queue,
        max_body_bytes=round(max_body_mib * 2**20),
        api_key=os.environ.get(_KEY_VARIABLE, ""),
        logs_prompts=log_prompts,
    )
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    with listen_on(host, port) as listener, LLM(settings) as engine:
        run_server(
            engine,
            options,
            listener,
            grace_s=grace_s,
            announce=lambda url: typer.echo(f"{settings.label}: serving on {url}"),
        )
