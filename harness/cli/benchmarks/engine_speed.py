"""The engine against the oracle model, compiled against eager, a long limit against a short one.

Both sides of a ratio take turns in one process, so that a busy machine slows both.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.cli.benchmarks.measurement import Figure, package_hash
from harness.core.engine_face import EngineSettings

if TYPE_CHECKING:
    from engine.llm import LLM

__all__ = ["context_figures", "oracle_figures", "region_figures"]

_FIRST_ID = 3  # after the special tokens
_STEPS = 9  # decode steps in a turn
_TURNS = 5
# One row a step throughout, so that prompt and decode steps share their graphs.
_ONE_ROW = {"token_bucket": 1, "max_num_batched_tokens": 1}


def oracle_figures(checkpoint: Path) -> list[Figure]:
    """Decode, and prefill of 128 rows, against the naive oracle model; `fast` on both sides.

    Decode is the engine's own way, compiled regions; eager execution stands beside it.
    """
    import references.oracle

    against = f"references.oracle {package_hash(references.oracle)}"
    decode = _decode_ratio(checkpoint, _fast(checkpoint, enforce_eager=False, **_ONE_ROW))
    eager = _decode_ratio(checkpoint, _fast(checkpoint, **_ONE_ROW))
    prefill = _prefill_ratio(checkpoint)
    return [
        _at_least("engine decode over oracle", decode, 5.0, against),
        Figure("eager engine decode over oracle", eager, "x", baseline=against),
        _at_least("engine prefill of 128 rows over oracle", prefill, 3.0, against),
    ]


def _decode_ratio(checkpoint: Path, settings: EngineSettings) -> float:
    from engine.llm import LLM
    from references.oracle import OracleModel

    oracle = OracleModel(checkpoint, "fast")
    state = oracle.new_state()
    with LLM(settings) as engine:
        prompt = _prompt(engine, 32)
        oracle.forward(prompt, state)
        _step_ms(engine, prompt)  # warm-up

        def oracle_ms() -> float:
            start = time.perf_counter()
            oracle.forward([_FIRST_ID], state)
            return (time.perf_counter() - start) * 1e3

        return _median_ratio(oracle_ms, lambda: _step_ms(engine, prompt), _TURNS)


def _prefill_ratio(checkpoint: Path) -> float:
    from engine.llm import LLM
    from references.oracle import OracleModel

    oracle = OracleModel(checkpoint, "fast")
    settings = _fast(checkpoint, token_bucket=128, max_num_batched_tokens=128, max_model_len=136)
    with LLM(settings) as engine:
        prompt = _prompt(engine, 128)

        def engine_ms() -> float:
            (one,) = engine.generate([prompt], max_tokens=1)
            return (one.token_ns[0] - one.t_send_ns) / 1e6

        def oracle_ms() -> float:
            start = time.perf_counter()
            oracle.forward(prompt, oracle.new_state())
            return (time.perf_counter() - start) * 1e3

        engine_ms()
        return _median_ratio(oracle_ms, engine_ms, 2)


def region_figures(checkpoint: Path) -> list[Figure]:
    """A whole decode step of compiled regions against eager execution.

    The first run compiles for minutes, later ones read the graphs from disk.
    """
    from engine.llm import LLM

    with (
        LLM(_fast(checkpoint, **_ONE_ROW)) as eager,
        LLM(_fast(checkpoint, enforce_eager=False, **_ONE_ROW)) as compiled,
    ):
        prompt = _prompt(eager, 16)
        _step_ms(eager, prompt)
        _step_ms(compiled, prompt)
        num_events = compiled.totals["compile_events"]
        ratio = _median_ratio(
            lambda: _step_ms(eager, prompt), lambda: _step_ms(compiled, prompt), _TURNS
        )
        (one,) = compiled.generate([prompt], max_tokens=2)
    counts = ("regions", "launches", "graphs")
    return [
        _at_least("compiled decode step over eager", ratio, 1.2, "the same engine, eager"),
        Figure("compile events of this run", num_events, ""),
        *(Figure(f"{name} of a compiled decode step", one.counters[name], "") for name in counts),
    ]


def context_figures(checkpoint: Path) -> list[Figure]:
    """A decode step at equal context where requests may grow to 65536 tokens, over 4096."""
    from engine.llm import LLM

    limits = (4096, 65536)
    with TemporaryDirectory() as place:
        wide = _with_positions(checkpoint, Path(place), max(limits))
        short, long = (
            LLM(_fast(wide, context_buckets=(64,), max_model_len=limit)) for limit in limits
        )
    with short as at_4k, long as at_64k:
        prompt = _prompt(at_4k, 32)
        _step_ms(at_4k, prompt)
        _step_ms(at_64k, prompt)
        ratio = _median_ratio(
            lambda: _step_ms(at_64k, prompt), lambda: _step_ms(at_4k, prompt), 2 * _TURNS
        )
    name = "decode step at max_model_len 64k over 4k"
    return [Figure(name, ratio, "x", "<= 1.1", ratio <= 1.1, "the same engine at 4k")]


def _with_positions(checkpoint: Path, place: Path, num_positions: int) -> Path:
    """The same checkpoint, whose configuration allows more positions."""
    for file in checkpoint.iterdir():
        if file.name != "config.json":
            (place / file.name).symlink_to(file.absolute())
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["max_position_embeddings"] = num_positions
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return place


def _fast(checkpoint: Path, **changes: object) -> EngineSettings:
    return EngineSettings(str(checkpoint), numerics="fast", num_threads=1, **changes)  # type: ignore[arg-type]


def _prompt(engine: LLM, length: int) -> list[int]:
    span = engine.vocab_size - _FIRST_ID
    return [_FIRST_ID + 7 * place % span for place in range(length)]


def _step_ms(engine: LLM, prompt: list[int]) -> float:
    """Median time between tokens of one request."""
    (one,) = engine.generate([prompt], max_tokens=_STEPS + 1)
    gaps = [b - a for a, b in zip(one.token_ns, one.token_ns[1:], strict=False)]
    return statistics.median(gaps) / 1e6


def _median_ratio(
    numerator_ms: Callable[[], float], denominator_ms: Callable[[], float], turns: int
) -> float:
    return statistics.median(numerator_ms() / denominator_ms() for _ in range(turns))


def _at_least(name: str, ratio: float, goal: float, against: str) -> Figure:
    return Figure(name, ratio, "x", f">= {goal:g}", ratio >= goal, against)
