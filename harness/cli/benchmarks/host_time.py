"""What a step costs the leader's host: 64 ranks without a model (port.md R13).

Real processes stand in for the ranks: each sleeps in its pipe, reads the step's plan from shared
memory, and the first of each batch answers. They far outnumber the cores here, so wall time says
more about this machine than about the leader. What counts is the processor time of the leader's
process (scheduler, plan, encoding, publishing, waking, collecting, applying), all its threads
included; on a host with a core for every rank the two are the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.benchmarks.measurement import Figure, source_hash
from harness.core.engine_face import EngineSettings

if TYPE_CHECKING:
    from engine.llm import LLM

__all__ = ["host_time_figures"]

_NUM_RANKS = 64
_GOAL_MS = 2.0
_PROMPT_LEN = 1024
_NUM_STEPS = 200
_WARM_UP_STEPS = 20
# (cp, requests a batch): one tensor-parallel group, alone and full, and DP attention.
_SHAPES = ((64, 1), (64, 8), (1, 1))


def host_time_figures(checkpoint: Path) -> list[Figure]:
    """Milliseconds of the leader a decode step, by layout of the ranks.

    Args:
        checkpoint: of a model with 64 heads; only its configuration is read.
    """
    figures: list[Figure] = []
    for cp, num_requests in _SHAPES:
        settings = EngineSettings(
            str(checkpoint),
            cp=cp,
            ep=_NUM_RANKS,
            max_model_len=4096,
            page_size=64,
            num_kv_blocks=160 * num_requests,
            num_threads=1,
        )
        figures.extend(_figures(settings, num_requests * (_NUM_RANKS // cp)))
    return figures


def _figures(settings: EngineSettings, num_requests: int) -> list[Figure]:
    from engine.llm import LLM
    from engine.parallel.processes import ProcessExecutor
    from harness.cli.benchmarks.null_ranks import null_rank_main

    executor = partial(ProcessExecutor, main=null_rank_main, shares_collectives=False)
    with LLM(settings, executor=executor) as llm:
        cpu_ms, wall_ms = _step_times(llm, num_requests)
    name = f"host, cp={settings.cp} ep={settings.ep}, {num_requests} requests"
    # One batch is what the goal speaks of: 64 ranks, one plan.
    has_goal = settings.cp == _NUM_RANKS
    leader = Figure(
        f"{name}: leader",
        statistics.median(cpu_ms),
        "ms/step",
        f"<= {_GOAL_MS:g}" if has_goal else "",
        statistics.median(cpu_ms) <= _GOAL_MS if has_goal else None,
        f"null ops {source_hash(null_rank_main)}",
    )
    return [leader, Figure(f"{name}: wall on this machine", statistics.median(wall_ms), "ms/step")]


def _step_times(llm: LLM, num_requests: int) -> tuple[Sequence[float], Sequence[float]]:
    """Processor and wall milliseconds of decode steps."""
    from engine.schedule.request import Request

    requests = []
    for number in range(num_requests):
        prompt = [(7 * index + number) % llm.vocab_size for index in range(_PROMPT_LEN)]
        request = Request(
            request_id=number,
            prompt_len=_PROMPT_LEN,
            tokens=prompt,
            # None may end while others are still at their prompts.
            max_tokens=2 * _PROMPT_LEN,
            ignore_eos=True,
            want_logits=False,
        )
        requests.append(request)
        llm.submit(request)
    while not all(request.is_decoding for request in requests):
        llm.step()
    cpu_ms, wall_ms = [], []
    for number in range(_WARM_UP_STEPS + _NUM_STEPS):
        cpu, wall = time.process_time(), time.perf_counter()
        llm.step()
        if number >= _WARM_UP_STEPS:
            cpu_ms.append((time.process_time() - cpu) * 1e3)
            wall_ms.append((time.perf_counter() - wall) * 1e3)
    return cpu_ms, wall_ms
