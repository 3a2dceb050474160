"""`neuron-harness evaluate`: a task's score offline, beside a stored one (port.md R26)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from harness.cli import engine_options as on
from harness.cli.session import console
from harness.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from harness.core.evaluation import EvaluationTask, StoredScore
    from harness.run.evaluate import Score

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    checkpoint: on.Checkpoint,
    task: Annotated[str, typer.Option(help="Name or file of an evaluation.")] = "tiny",
    beside: Annotated[str, typer.Option(help="Name of a stored score; default: by content.")] = "",
    numerics: on.Numerics = "fast",
    cp: on.Cp = 1,
    ep: on.Ep = 0,
    ops: on.Ops = None,
    fp8_max: on.Fp8Max = 0,
    max_model_len: on.MaxModelLen = 0,
    num_kv_blocks: on.NumKvBlocks = 0,
    max_num_batched_tokens: on.MaxNumBatchedTokens = 0,
    prefill: on.Prefill = "as-decode",
    moe_capacity: on.MoeCapacity = 0,
    enforce_eager: on.EnforceEager = True,
    compile_backend: on.CompileBackend = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Score a task. Ends with 1 where a stored score lies outside the interval found here."""
    settings = on.engine_settings(locals())
    from engine.environment import with_environment
    from harness.cli.engine_factory import open_engine
    from harness.cli.op_choice import with_op_targets
    from harness.run.checkpoint_id import checkpoint_id
    from harness.run.evaluate import evaluate_items, scores_of
    from suites.loader import load_evaluation

    settings = with_op_targets(with_environment(settings), ops)
    loaded = load_evaluation(task)
    identity = checkpoint_id(checkpoint)
    stored = _stored(loaded, beside, identity)
    with open_engine(settings) as engine:
        items = list(evaluate_items(loaded, engine, _encoder(checkpoint)))
    scores = scores_of(items)
    outside = [score.name for score in scores if _is_outside(score, stored)]
    if as_json:
        facts = _facts(loaded, settings.label, identity, scores, stored)
        facts["items"] = [item.as_record() for item in items]
        typer.echo(json.dumps(facts, allow_nan=False))
    else:
        console().print(_table(loaded, settings.label, scores, stored))
        console().print(f"checkpoint {identity}", markup=False)
    raise typer.Exit(ExitCode.MISMATCH if outside else ExitCode.PASS)


def _encoder(checkpoint: Path) -> Any:
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def _stored(task: EvaluationTask, name: str, identity: str) -> StoredScore | None:
    for stored in task.stored:
        if stored.name == name or (not name and stored.checkpoint_id == identity):
            return stored
    if name:
        known = ", ".join(stored.name for stored in task.stored) or "none"
        raise UsageError(f"--beside {name!r}: the task stores no such score; there is {known}")
    return None


def _is_outside(score: Score, stored: StoredScore | None) -> bool:
    value = stored.values.get(score.name) if stored is not None else None
    return value is not None and not score.low <= value <= score.high


def _facts(
    task: EvaluationTask,
    label: str,
    identity: str,
    scores: tuple[Score, ...],
    stored: StoredScore | None,
) -> dict[str, Any]:
    return {
        "task": task.name,
        "setting": label,
        "checkpoint_id": identity,
        "stored": stored.name if stored else None,
        "scores": {
            score.name: {
                "value": score.value,
                "interval": [score.low, score.high],
                "num_items": score.num_items,
                "stored": stored.values.get(score.name) if stored else None,
            }
            for score in scores
        },
    }


def _table(
    task: EvaluationTask, label: str, scores: tuple[Score, ...], stored: StoredScore | None
) -> Table:
    name = stored.name if stored else "none for this checkpoint"
    table = Table("score", "value", "95 % interval", "items", f"stored: {name}", "within")
    table.title = f"{task.name}, {label}"
    for score in scores:
        value = stored.values.get(score.name) if stored else None
        table.add_row(
            score.name,
            f"{score.value:.4f}",
            f"{score.low:.4f} .. {score.high:.4f}",
            str(score.num_items),
            "-" if value is None else f"{value:.4f}",
            "-" if value is None else "no" if _is_outside(score, stored) else "yes",
        )
    return table
