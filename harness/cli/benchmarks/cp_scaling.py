"""What a second rank gains: prefill at cp=2 against cp=1, one thread a rank.

Wall time says so only where two cores are free for the two ranks. The processor time of the
busier rank against that of the only one is what the partition itself leaves to gain, whatever
else runs on the machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from engine.llm import LLM
from engine.parallel.processes import ProcessExecutor
from engine.worker import Worker
from harness.cli.benchmarks.measurement import Figure, paired_seconds, source_hash
from harness.core.engine_face import EngineFace, EngineSettings

__all__ = ["cp_scaling_figures"]

_GOAL = 1.4
_PROMPT_LEN = 256
_CHUNK = 128
_PAIRS = 3


def cp_scaling_figures(checkpoint: Path) -> list[Figure]:
    """Prompt tokens a second of both, and their ratio, in `fast` numerics."""
    one, two = (
        EngineSettings(
            str(checkpoint),
            cp=cp,
            numerics="fast",
            num_threads=1,
            max_model_len=_PROMPT_LEN + 1,
            token_bucket=_CHUNK,
        )
        for cp in (1, 2)
    )
    with LLM(one) as single, LLM(two) as pair:
        # The first prompt also prepares the weights.
        _prefill(pair)
        before = _busiest_s(pair)
        ours_s, theirs_s, ratio = paired_seconds(
            lambda: _prefill(pair), lambda: _prefill(single), _PAIRS
        )
        rank_s = (_busiest_s(pair) - before) / (_PAIRS + 1)
        start = time.process_time()
        _prefill(single)
        only_s = time.process_time() - start
    gain = 1 / ratio
    against = f"cp=1, {source_hash(Worker)}"
    name = f"prefill {_PROMPT_LEN}, {checkpoint.name}, fast, one thread a rank"
    return [
        Figure(f"{name}: cp=1", _PROMPT_LEN / theirs_s, "tokens/s"),
        Figure(f"{name}: cp=2", _PROMPT_LEN / ours_s, "tokens/s"),
        Figure(f"{name}: cp=2 / cp=1", gain, "times", f">= {_GOAL:g}", gain >= _GOAL, against),
        Figure(
            f"{name}: processor time of cp=1 / busier rank of cp=2",
            only_s / rank_s,
            "times",
            baseline=against,
        ),
    ]


def _busiest_s(engine: LLM) -> float:
    """Processor seconds so far of the rank process that has used most."""
    executor = engine.executor
    assert isinstance(executor, ProcessExecutor)
    ticks = [
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        for pid in executor.pids
    ]
    return max(ticks) / os.sysconf("SC_CLK_TCK")


def _prefill(engine: EngineFace) -> None:
    prompt = [(7 * index) % engine.vocab_size for index in range(1, _PROMPT_LEN + 1)]
    engine.generate([prompt], max_tokens=1)
