"""`neuron-harness logits`: teacher-forced logits of given ids, for comparison elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.engine_options import Cp, Ep, MoeCapacity
from harness.cli.finite_logits import require_finite
from harness.cli.session import parse_ints
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logits")(logits)


def logits(
    checkpoint: Annotated[Path, typer.Option(help="Directory with config.json.")],
    ids: Annotated[str, typer.Option(help="Token ids, e.g. 1,2,3.")],
    out: Annotated[Path, typer.Option(help="The .npz file to write.")],
    numerics: Annotated[str, typer.Option(help="exact, quantised, trn2 or fast.")] = "exact",
    cp: Cp = 1,
    ep: Ep = 0,
    moe_capacity: MoeCapacity = 0,
) -> None:
    """Write arrays `ids` [n] and `logits` [n, vocab] fp32: row i follows ids[:i+1]."""
    import numpy as np

    from engine import LLM

    token_ids = parse_ints(ids, "--ids")
    if out.suffix != ".npz":
        raise UsageError(f"--out {out}: the file's name must end in .npz")
    # The default length is a bucket; a longer prompt brings its own.
    settings = EngineSettings(
        str(checkpoint),
        cp=cp,
        ep=ep,
        numerics=numerics,
        moe_capacity=moe_capacity,
        max_model_len=len(token_ids) if len(token_ids) > _DEFAULT_LENGTH else 0,
    )
    _require_writable(out)
    with LLM(settings) as llm:
        rows = llm.score(token_ids)
    is_bad = ~np.isfinite(rows).all(axis=1)
    require_finite(int(is_bad.argmax()) if is_bad.any() else None, checkpoint)
    staging = out.with_name(f".{out.name}.part")
    with staging.open("wb") as file:
        np.savez(file, ids=np.asarray(token_ids, dtype=np.int64), logits=rows.astype(np.float32))
    staging.replace(out)
    typer.echo(f"{out}: logits {list(rows.shape)} of {settings.label}")


_DEFAULT_LENGTH = 128


def _require_writable(out: Path) -> None:
    """Before a long run, not after it."""
    staging = out.with_name(f".{out.name}.part")
    try:
        staging.touch()
        staging.unlink()
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror})") from error
