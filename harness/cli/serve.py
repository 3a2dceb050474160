"""`neuron-harness serve`: the OpenAI-compatible server (port.md R21)."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import engine_options as on
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

if TYPE_CHECKING:
    from engine.serve.app import ServeOptions

__all__ = ["register"]

_KEY_VARIABLE = "NEURON_HARNESS_API_KEY"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    checkpoint: on.Checkpoint,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    numerics: on.Numerics = "fast",
    cp: on.Cp = 1,
    ep: on.Ep = 0,
    ops: on.Ops = None,
    speculative: on.Speculative = "",
    confidence_threshold: Annotated[float, typer.Option(help="Cuts unlikely drafts.")] = 0.0,
    fp8_max: on.Fp8Max = 0,
    max_model_len: on.MaxModelLen = 0,
    num_kv_blocks: on.NumKvBlocks = 0,
    max_num_batched_tokens: on.MaxNumBatchedTokens = 0,
    prefill: on.Prefill = "as-decode",
    moe_capacity: on.MoeCapacity = 0,
    enforce_eager: on.EnforceEager = True,
    compile_backend: on.CompileBackend = "",
    token_bucket: on.TokenBucket = 0,
    context_buckets: on.ContextBuckets = "",
    page_size: on.PageSize = 0,
    num_threads: on.NumThreads = 0,
    time_limit_s: on.TimeLimit = 120.0,
    device: on.Device = "cpu",
    allowed_fallbacks: Annotated[
        list[str] | None, typer.Option(help="Op that may run on the CPU; may be repeated.")
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Instead of the checkpoint's path; may be repeated.")
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Sequences that may wait; 429 past it.")] = 256,
    max_body_mib: Annotated[float, typer.Option(help="Largest request body; 413 past it.")] = 8.0,
    grace_s: Annotated[float, typer.Option(help="What runs may end within it.")] = 30.0,
    log_prompts: Annotated[bool, typer.Option(help="Show prompt ids in the log.")] = False,
    ends_with_stdin: Annotated[bool, typer.Option("--ends-with-stdin", hidden=True)] = False,
) -> None:
    """Serve until Ctrl-C or SIGTERM. NEURON_HARNESS_API_KEY, if set, is asked of every client."""
    settings = on.engine_settings(locals())
    if max_queue < 0 or max_body_mib <= 0:
        raise UsageError(f"--max-queue {max_queue} --max-body-mib {max_body_mib}: must be positive")
    from engine.environment import with_environment
    from engine.serve.app import ServeOptions
    from harness.cli.engine_factory import fitting_threads
    from harness.cli.op_choice import with_op_targets

    settings = with_op_targets(with_environment(settings), ops)
    settings = replace(settings, num_threads=num_threads or fitting_threads(settings))
    options = ServeOptions(
        model_names=tuple(served_model_name or ()),
        max_queue=max_queue,
        max_body_bytes=round(max_body_mib * 2**20),
        api_key=os.environ.get(_KEY_VARIABLE, ""),
        logs_prompts=log_prompts,
    )
    _log_to_stderr()
    if ends_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    _run(settings, options, (host, port), grace_s)


def _run(
    settings: EngineSettings, options: ServeOptions, address: tuple[str, int], grace_s: float
) -> None:
    """Take the port before the checkpoint is loaded, and serve until told to end."""
    from engine import LLM
    from engine.serve.runner import listen_on
    from engine.serve.runner import serve as run_server

    with listen_on(*address) as listener, LLM(settings) as engine:
        run_server(
            engine,
            options,
            listener,
            grace_s=grace_s,
            announce=lambda url: typer.echo(f"{settings.label}: serving on {url}"),
        )


def _end_with_stdin() -> None:
    """Whoever started this server has ended, and be it by a signal nobody can catch."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
