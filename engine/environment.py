"""The port's environment variables as aliases of engine settings (port.md).

An option given explicitly wins over its variable. A variable whose feature this engine does not
have is refused where it asks for it, and named: none is ignored in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["PREFIX", "VARIABLES", "with_environment"]

PREFIX = "DEEPINFER_"


def _integer(text: str) -> int:
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("a switch is 0 or 1")
    return text == "1"


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(entry) for entry in text.split(",") if entry.strip())


# variable -> (field of EngineSettings, how its text is read)
VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "ACCELERATOR": ("device", str.strip),
    "NEURON_PREFILL_BUCKET": ("token_bucket", _integer),
    "NEURON_CTX_BUCKETS": ("context_buckets", _integers),
    "NEURON_NUM_KV_BLOCKS": ("num_kv_blocks", _integer),
    "NEURON_MOE_CAPACITY": ("moe_capacity", _integer),
    "ENFORCE_EAGER": ("enforce_eager", _switch),
}
# Accepted: what they ask for holds anyway, or concerns what a text engine has not.
_HELD = {"USE_MULTIMODAL_POOL": None, "MAX_BACKTRACKING_TOKENS": None}
# The launcher numbers its ranks itself, so this may only repeat what it does.
_RANK = "NEURON_LOCAL_RANK"


def with_environment(
    settings: EngineSettings, environment: Mapping[str, str] | None = None
) -> EngineSettings:
    """The settings with every field that still has its default taken from its variable.

    Args:
        environment: os.environ without it.

    Raises:
        UsageError: a value that cannot be read, or a variable asking for what is not there.
    """
    found = os.environ if environment is None else environment
    defaults = EngineSettings(settings.checkpoint)
    changes: dict[str, Any] = {}
    for variable, (name, read) in VARIABLES.items():
        text = found.get(PREFIX + variable, "")
        if not text or getattr(settings, name) != getattr(defaults, name):
            continue
        changes[name] = _read(PREFIX + variable, text, read)
    _check_held(found)
    return replace(settings, **changes)


def _read(variable: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as error:
        remedy = "write 0 or 1" if read is _switch else "write numbers as 128 or 2048,4096"
        raise UsageError(f"{variable}={text!r}: {error}; {remedy}") from None


def _check_held(found: Mapping[str, str]) -> None:
    for variable, needed in _HELD.items():
        text = found.get(PREFIX + variable, "")
        if text and needed is not None and text != needed:
            raise UsageError(
                f"{PREFIX}{variable}={text!r}: this engine runs as with {needed!r}; unset it"
            )
    rank = found.get(PREFIX + _RANK, "")
    if rank not in ("", "0"):
        raise UsageError(
            f"{PREFIX}{_RANK}={rank!r}: one process starts all ranks; start rank 0 only"
        )
