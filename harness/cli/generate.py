"""`neuron-harness generate`: offline generation, with the options of port.md R19."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Numerics,
    NumKvBlocks,
    Prefill,
    TimeLimit,
    engine_settings,
)
from harness.cli.finite_logits import require_finite
from harness.cli.op_choice import with_ops
from harness.cli.session import parse_ints
from harness.core.engine_face import EngineSettings, Generation, step_rows
from harness.core.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["register"]

_DEFAULT_PROMPT = "Hello"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate")(generate)


def generate(
    checkpoint: Checkpoint,
    ids: Annotated[str | None, typer.Option(help="Prompt as token ids, e.g. 1,2,3.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prompt as text; default: Hello.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "--max_tokens")] = 16,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", "--ignore_eos")] = False,
    numerics: Numerics = "fast",
    cp: Cp = 1,
    ep: Ep = 0,
    max_model_len: MaxModelLen = 0,
    num_kv_blocks: NumKvBlocks = 0,
    max_num_batched_tokens: MaxNumBatchedTokens = 0,
    prefill: Prefill = "as-decode",
    moe_capacity: MoeCapacity = 0,
    enforce_eager: EnforceEager = True,
    compile_backend: CompileBackend = "",
    speculative: Annotated[str, typer.Option(help="'dspark' drafts and verifies.")] = "",
    confidence_threshold: Annotated[float, typer.Option(help="Cuts drafts; 0: none.")] = 0.0,
    temperature: Annotated[float, typer.Option(help="0: greedy, lowest id on ties.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", "--top_p", help="Mass that is kept.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", "--top_k", help="Kept; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the draws; the same seed says the same.")] = 0,
    logprobs: Annotated[
        int, typer.Option(help="Alternatives shown with each token's log-probability; -1: none.")
    ] = -1,
    device: Device = "cpu",
    ops: OpsWord = "",
    allow_fallback: AllowFallback = None,
    time_limit_s: TimeLimit = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Generate, greedily unless --temperature says otherwise; print the text, or all as JSON."""
    options = {**locals(), "ops": None, "allowed_fallbacks": allow_fallback}
    from engine import LLM
    from engine.environment import with_environment
    from engine.schedule.distribution import SamplingRule

    rule = SamplingRule(temperature, top_k=top_k, top_p=top_p, seed=seed)
    settings = with_ops(with_environment(engine_settings(options)), ops)
    tokenizer = _tokenizer(checkpoint)
    token_ids = _prompt_ids(ids, prompt, tokenizer, checkpoint)
    with LLM(settings) as llm:
        (one,) = llm.generate(
            [token_ids],
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            want_logits=logprobs >= 0,
            sampling=rule,
        )
    require_finite(one.counters.get("nonfinite_position"), checkpoint)
    text = tokenizer.decode(list(one.token_ids)) if tokenizer else None
    facts = _facts(one, text) | ({"logprobs": _logprobs(one, logprobs)} if logprobs >= 0 else {})
    typer.echo(json.dumps(facts) if as_json else _readable(facts))
    _refuse_fallbacks(one, settings)


def _refuse_fallbacks(one: Generation, settings: EngineSettings) -> None:
    """Say which op left the device unasked, and exit."""
    from harness.run.fallbacks import fallback_failure

    failure = fallback_failure(one.counters, settings.allowed_fallbacks)
    if failure:
        typer.echo(failure, err=True)
        raise typer.Exit(ExitCode.MISMATCH)


def _tokenizer(checkpoint: Path) -> Tokenizer | None:
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def _prompt_ids(
    ids: str | None, prompt: str | None, tokenizer: Tokenizer | None, checkpoint: Path
) -> tuple[int, ...]:
    if ids is not None and prompt is not None:
        raise UsageError("--ids and --prompt are two prompts; give one")
    for option, given in (("--ids", ids), ("--prompt", prompt)):
        if given == "":
            raise UsageError(f"{option} is empty: give at least one token, or leave it out")
    if ids is not None:
        return parse_ints(ids, "--ids")
    text = _DEFAULT_PROMPT if prompt is None else prompt
    # What the shell passes on that is not UTF-8 arrives as lone surrogates.
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise UsageError(f"--prompt {text!r}: it is not UTF-8; convert it, or give --ids")
    if tokenizer is None:
        remedy = "a text prompt needs it; give --ids instead"
        raise InputError(checkpoint, "tokenizer.json", "absent", remedy)
    return tuple(tokenizer.encode(text).ids)


def _facts(one: Generation, text: str | None) -> dict[str, Any]:
    first, last = one.token_ns[0], one.token_ns[-1]
    count = len(one.token_ids)
    return {
        "token_ids": list(one.token_ids),
        "text": text,
        "finish_reason": one.finish_reason,
        "prompt_tokens": one.prompt_len,
        "ttft_ms": (first - one.t_send_ns) / 1e6,
        "tpot_ms": (last - first) / 1e6 / (count - 1) if count > 1 else None,
        "acceptance": one.counters.get("mean_acceptance_length"),
        "acceptance_by_place": _acceptance_by_place(one),
        "num_prefill_steps": one.num_prefill_steps,
        "bucket": one.bucket,
        "padding_share": one.padding_share,
        "steps": step_rows(one.steps),
        "counters": dict(one.counters),
    }


def _acceptance_by_place(one: Generation) -> list[float] | None:
    """Share of verified blocks in which the draft at each place was accepted; null: no drafts."""
    blocks = one.counters.get("num_drafts")
    if not blocks:
        return None
    names = [name for name in one.counters if name.startswith("accepted_at_")]
    return [one.counters[name] / blocks for name in names]


def _logprobs(one: Generation, num_top: int) -> list[dict[str, Any]]:
    """Natural log-probability of each token under the model itself, and the best alternatives."""
    from engine.serve.logprobs import LogprobRecorder

    assert one.logits is not None
    recorder = LogprobRecorder(num_top)
    recorder.take(one.logits)
    return [dataclasses.asdict(entry) for entry in recorder.follow(one.token_ids)]


def _readable(facts: dict[str, Any]) -> str:
    tpot_ms = facts["tpot_ms"]
    tpot = "-" if tpot_ms is None else f"{tpot_ms:.1f} ms"
    ids = ",".join(map(str, facts["token_ids"]))
    text = facts["text"] if facts["text"] is not None else "(no tokenizer.json)"
    lines = [
        f"  {entry['token_id']}: {entry['logprob']:.4f}"
        + "".join(f"  {token} {logprob:.4f}" for token, logprob in entry["top"])
        for entry in facts.get("logprobs", ())
    ]
    return "\n".join((_summary(text, ids, facts, tpot), *lines))


def _summary(text: str, ids: str, facts: dict[str, Any], tpot: str) -> str:
    return (
        f"{text}\nids  {ids}\nTTFT {facts['ttft_ms']:.1f} ms, TPOT {tpot}, {facts['finish_reason']}"
    )
