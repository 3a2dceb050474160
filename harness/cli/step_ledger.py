"""Measures decode steps of an engine: once as they are, once with their parts timed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.config.limits import resolve_limits
from engine.graphs.region_times import COLLECTIVE, OP, REGION, SILENT, STEP, VARIABLE, StepTimes
from engine.llm import LLM
from engine.schedule.plan import StepPlan
from engine.shapes.calls import decode_step_calls
from engine.worker import resolve_numerics
from harness.cli.engine_factory import fitting_threads
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.op_call import CountedCall
from harness.core.step_ledger import OpCost, PartKind, StepLedger, StepPart
from harness.core.token_suite import Prompt
from harness.run.checkpoint_id import checkpoint_id
from harness.run.clock import Clock, SystemClock
from harness.run.fallbacks import fallback_failure
from harness.run.microbench import Calibration
from harness.run.roofline import Machine, call_cost, machine_of

__all__ = ["measure_ledger"]

_PROMPT_SEED = 61
# Steps after the prompt that are not kept: first calls of a shape fill caches.
_NUM_WARMUPS = 2
_MESSAGES = "plan and messages (engine to rank and back)"
_SCHEDULE = "scheduler (between two steps)"


@dataclass(frozen=True, slots=True)
class _Step:
    """One decode step: when its token was known, how long the executor took, the rank's account."""

    token_ns: int
    executor_ns: int
    times: StepTimes


def measure_ledger(
    settings: EngineSettings,
    input_len: int,
    num_steps: int,
    calibration: Calibration | None = None,
    clock: Clock | None = None,
) -> StepLedger:
    """Decode `num_steps` tokens after a prompt, twice, and account for the timed ones.

    Raises:
        UsageError: no step to measure, drafts (whose steps are of two kinds), or a request that
            the engine refuses.
        MissingEvidenceError: an op left the device: its time is not the device's.
        RankError: a rank died or hung.
    """
    if num_steps < 1 or input_len < 1:
        raise UsageError(f"--input-len {input_len} --steps {num_steps}: both are at least 1")
    if settings.speculative:
        raise UsageError("a step ledger is of plain decode steps: leave --speculative out")
    settings = _with_threads(settings)
    limits = resolve_limits(settings, _config(settings))
    num_tokens = input_len + num_steps + _NUM_WARMUPS + 1
    if num_tokens > limits.max_model_len:
        raise UsageError(
            f"--input-len {input_len} --steps {num_steps}: {num_tokens} tokens with warm-ups, "
            f"max_model_len is {limits.max_model_len}"
        )
    untimed, _ = _decode(settings, input_len, num_steps, clock)
    with _timed_engines():
        steps, generation = _decode(settings, input_len, num_steps, clock)
    _require_on_device(settings, generation)
    config = {
        "numerics": settings.numerics,
        "cp": settings.cp,
        "ep": settings.ep or settings.cp,
        "ops": list(settings.ops),
        "device": settings.device,
        "compiled": not settings.enforce_eager,
        "input_len": input_len,
        "num_steps": num_steps,
        "context": limits.context_bucket(num_tokens),
        "checkpoint": checkpoint_id(Path(settings.checkpoint)),
    }
    return _account(settings, config, untimed, steps, num_tokens, machine_of(calibration))


def _with_threads(settings: EngineSettings) -> EngineSettings:
    return replace(settings, num_threads=settings.num_threads or fitting_threads(settings))


def _config(settings: EngineSettings) -> Any:
    from engine.config.parse import load_model_config

    return load_model_config(settings.checkpoint)


@contextmanager
def _timed_engines() -> Iterator[None]:
    """Engines opened inside time their parts."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = SILENT
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _decode(
    settings: EngineSettings, input_len: int, num_steps: int, clock: Clock | None
) -> tuple[list[_Step], Generation]:
    """The measured steps of one engine, and what it generated; index 0 is their starting point."""
    now_ns = (clock or SystemClock()).monotonic_ns
    heard: list[tuple[int, StepTimes]] = []
    with LLM(settings) as engine:
        execute = engine.executor.execute

        def observed(plans: Sequence[StepPlan]) -> Any:
            start_ns = now_ns()
            outputs = execute(plans)
            heard.append((now_ns() - start_ns, outputs[0].times))
            return outputs

        engine.executor.execute = observed  # type: ignore[method-assign]
        prompt = Prompt("ledger", 1, length=input_len, seed=_PROMPT_SEED)
        (generation,) = engine.generate(
            [prompt.token_ids(engine.vocab_size)],
            max_tokens=num_steps + _NUM_WARMUPS + 1,
            ignore_eos=True,
        )
    # The prompt's last step gives the first token; each later one is a decode step of its own.
    decode = heard[-(num_steps + 1) :]
    stamps = generation.token_ns[-(num_steps + 1) :]
    steps = [_Step(at, *one) for at, one in zip(stamps, decode, strict=True)]
    return steps, generation


def _require_on_device(settings: EngineSettings, generation: Generation) -> None:
    failure = fallback_failure(generation.counters, settings.allowed_fallbacks)
    if failure:
        raise MissingEvidenceError(f"no ledger of a step that left the device: {failure}")


def _account(
    settings: EngineSettings,
    config: dict[str, Any],
    untimed: Sequence[_Step],
    steps: Sequence[_Step],
    num_tokens: int,
    machine: Machine,
) -> StepLedger:
    measured = steps[1:]
    calls = decode_step_calls(
        _config(settings),
        resolve_limits(settings, _config(settings)),
        resolve_numerics(settings),
        settings.cp,
        num_tokens,
    )
    return StepLedger(
        setting=settings.label,
        config=config,
        step_ns=_gaps(steps),
        untimed_step_ns=_gaps(untimed),
        parts=(*_rank_parts(measured, settings, machine), *_host_parts(steps)),
        ops=_ops(calls, measured, machine, is_eager=settings.enforce_eager),
        calibration=machine.label,
    )


def _gaps(steps: Sequence[_Step]) -> tuple[int, ...]:
    return tuple(after.token_ns - before.token_ns for before, after in pairwise(steps))


def _rank_parts(
    steps: Sequence[_Step], settings: EngineSettings, machine: Machine
) -> Iterator[StepPart]:
    """Regions and collectives of the first rank."""
    keys = dict.fromkeys(key for step in steps for key in step.times if key[0] != OP)
    for kind, name in keys:
        if kind not in (REGION, COLLECTIVE):
            continue
        taken = [step.times.get((kind, name), (0, 0)) for step in steps]
        calls = sum(number for number, _ in taken) / len(steps)
        estimate = None
        if kind == COLLECTIVE:
            # Its floor alone: parts of a decode step are a few KiB.
            estimate = calls * machine.collective_ns(0, settings.cp)
        yield StepPart(name, PartKind(kind), calls, tuple(ns for _, ns in taken), estimate)


def _host_parts(steps: Sequence[_Step]) -> Iterator[StepPart]:
    """What lies around the rank's own step, by clocks of the engine."""
    whole = [step.times[STEP, ""][1] for step in steps[1:]]
    gaps = _gaps(steps)
    around = tuple(max(0, step.executor_ns - ns) for step, ns in zip(steps[1:], whole, strict=True))
    between = tuple(
        max(0, gap - step.executor_ns) for step, gap in zip(steps[1:], gaps, strict=True)
    )
    yield StepPart(_MESSAGES, PartKind.HOST, 1, around)
    yield StepPart(_SCHEDULE, PartKind.HOST, 1, between)


def _ops(
    calls: Sequence[CountedCall], steps: Sequence[_Step], machine: Machine, *, is_eager: bool
) -> tuple[OpCost, ...]:
    """Calls inside compiled regions are not heard: then an op's time is not that of all of them."""
    found = []
    for op in dict.fromkeys(one.call.op for one in calls):
        own = [one for one in calls if one.call.op == op]
        costs = [(one.count, call_cost(one.call, one.output_bytes)) for one in own]
        heard = [step.times.get((OP, op), (0, 0)) for step in steps]
        num_calls = sum(count for count, _ in costs)
        is_whole = is_eager or all(number == num_calls for number, _ in heard)
        measured = tuple(ns for _, ns in heard) if is_whole else ()
        found.append(
            OpCost(
                op,
                calls=num_calls,
                num_bytes=math.fsum(count * cost.num_bytes for count, cost in costs),
                flops=math.fsum(count * cost.flops for count, cost in costs),
                estimate_ns=math.fsum(count * machine.estimate_ns(cost) for count, cost in costs),
                measured_ns=measured if any(measured) else (),
            )
        )
    return tuple(found)
