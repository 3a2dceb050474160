"""Every op call a setting's steps make, by shapes: what has to be compiled for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.ops import OpObserver
from engine.shapes.plan import StepCounter
from engine.weights.checkpoint import MetaCheckpoint
from engine.weights.layout import RankLayout
from engine.weights.load import WeightLoader
from harness.core.numerics import Numerics
from harness.core.op_call import Argument, CountedCall, OpCall
from harness.core.weights import QuantisedWeight

__all__ = ["decode_step_calls", "step_calls"]

# Arguments whose rows are the tokens that this rank's experts were given: known when routing is.
_ROUTED = {"linear_fp4_grouped": (0,), "swiglu": (0, 1, 3)}
_LOOKUP = "engram_lookup"


def step_calls(
    config: ModelConfig, limits: EngineLimits, numerics: Numerics, cp: int
) -> tuple[OpCall, ...]:
    """Distinct calls of rank 0's decode step and prompt step in every context bucket.

    Of a decode step every number of routed rows is listed; of a prompt step none is, since how its
    rows fall on experts depends on the prompt.
    """
    layout = RankLayout(config, numerics, 0, cp)
    weights = WeightLoader(MetaCheckpoint(), layout).load(with_draft=False)
    counter = StepCounter(config, limits, numerics, layout, weights)
    found: dict[OpCall, None] = {}
    for name, num_rows, start in _steps(limits):
        seen: list[OpCall] = []
        counter.ops.observer = _observer(seen)
        counter.count(name, num_rows, start)
        for call in seen:
            found.update(dict.fromkeys(_variants(call, name, config)))
    return tuple(found)


def decode_step_calls(
    config: ModelConfig, limits: EngineLimits, numerics: Numerics, cp: int, num_tokens: int
) -> tuple[CountedCall, ...]:
    """Calls of rank 0 in the decode step that reads the `num_tokens`-th token, with their counts.

    Routed rows are the rank's even share of them.
    """
    layout = RankLayout(config, numerics, 0, cp)
    weights = WeightLoader(MetaCheckpoint(), layout).load(with_draft=False)
    counter = StepCounter(config, limits, numerics, layout, weights)
    counts: Counter[tuple[OpCall, int]] = Counter()
    share = max(1, round(config.experts_per_token / cp))

    def observe(op: str, arguments: tuple[Any, ...], result: Any) -> None:
        call = OpCall(op, tuple(map(_described, arguments)))
        outputs = result if isinstance(result, tuple) else (result,)
        written = sum(one.numel() * one.element_size() for one in outputs)
        if _is_routed(call, config):
            written = written * share // call.arguments[0].shape[0]
            call = call.with_rows(share, _ROUTED[op])
        counts[call, written] += 1

    counter.ops.observer = observe
    counter.count("decode", 1, num_tokens - 1)
    return tuple(CountedCall(call, n, written) for (call, written), n in counts.items())


def _observer(seen: list[OpCall]) -> OpObserver:
    def observe(op: str, arguments: tuple[Any, ...], result: Any) -> None:  # noqa: ARG001
        seen.append(OpCall(op, tuple(map(_described, arguments))))

    return observe


def _steps(limits: EngineLimits) -> Iterator[tuple[str, int, int]]:
    """(name, rows, first position) of a step that ends in each bucket."""
    for bucket in limits.context_buckets:
        yield "decode", 1, bucket - 1
        if bucket >= limits.token_bucket:
            yield "prompt", limits.token_bucket, bucket - limits.token_bucket


def _variants(call: OpCall, step: str, config: ModelConfig) -> Sequence[OpCall]:
    if call.op == _LOOKUP:
        return (_gathered(call),)
    if not _is_routed(call, config):
        return (call,)
    if step == "prompt":
        return ()
    places = _ROUTED[call.op]
    return [call.with_rows(rows, places) for rows in range(1, config.experts_per_token + 1)]


def _is_routed(call: OpCall, config: ModelConfig) -> bool:
    """Whether its rows are what the router gave this rank's experts."""
    if call.op not in _ROUTED or call.arguments[0].shape[0] % config.experts_per_token:
        return False
    return call.op != "swiglu" or _has_route_weight(call)  # without: the shared expert's


def _has_route_weight(call: OpCall) -> bool:
    return any(argument.kind == "tensor" for argument in call.arguments[1:])


def _gathered(call: OpCall) -> OpCall:
    """The table as a device sees it: only the rows of the step (engine.device.ops)."""
    table, ids = call.arguments
    rows = ids.shape[0] * ids.shape[1]
    shapes = tuple((rows, shape[1]) for shape in table.shapes)
    return OpCall(call.op, (Argument("quantised", table.text, shapes), ids))


def _described(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        return Argument("tensor", str(value.dtype).removeprefix("torch."), (tuple(value.shape),))
    if isinstance(value, QuantisedWeight):
        shapes = (tuple(value.codes.shape), tuple(value.scale.shape))
        return Argument("quantised", value.layout, shapes)
    return Argument("scalar", repr(value))
