"""Every op call a setting's steps make, by shapes: what has to be compiled for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from engine.config.limits import EngineLimits
from engine.config.model import ModelConfig
from engine.ops import OpObserver
from engine.parallel.topology import Topology
from engine.shapes.plan import StepCounter
from engine.weights.checkpoint import MetaCheckpoint
from engine.weights.layout import RankLayout
from engine.weights.load import WeightLoader
from harness.core.numerics import Numerics
from harness.core.op_call import Argument, CountedCall, OpCall
from harness.core.weights import QuantisedWeight

__all__ = ["StepCalls", "decode_step_calls", "step_calls"]

# Arguments whose rows are the tokens that this rank's experts were given: known when routing is.
_ROUTED = {"linear_fp4_grouped": (0,), "swiglu": (0, 1, 3)}
_LOOKUP = "engram_lookup"


def step_calls(
    config: ModelConfig,
    limits: EngineLimits,
    numerics: Numerics,
    cp: int,
    *,
    ep: int = 0,
    moe_capacity: int = 0,
    num_sequences: int = 1,
) -> StepCalls:
    """Distinct calls of rank 0 in every context bucket: decode, prompt, prefill and draft steps.

    Of a decode step every number of routed rows is listed. Of a prompt step the rows that its
    experts take are known where they run on slots (`moe_capacity`); without, how many there are
    depends on the prompt, and such calls are named apart.

    Args:
        ep: as in EngineSettings; experts take rows of every batch.
        moe_capacity: slots of an expert in steps with prompt rows; 0: no limit.
        num_sequences: most that decode together in a batch.

    Raises:
        UsageError: the ranks do not divide the heads, or ep is no multiple of cp.
    """
    topology = Topology.sharing(cp, ep)
    layout = RankLayout(config, numerics, 0, cp, 0, topology.num_batches)
    weights = WeightLoader(MetaCheckpoint(), layout).load(with_draft=bool(limits.backtrack))
    counter = StepCounter(config, limits, numerics, layout, weights)
    routing = _Routing(config, topology.num_ranks, moe_capacity)
    found: dict[OpCall, None] = {}
    unknown: dict[OpCall, None] = {}
    seen: list[OpCall] = []
    counter.ops.observer = _observer(seen)
    for step in _steps(config, limits, num_sequences):
        seen.clear()
        if step.name == "draft":
            counter.propose(step.start, step.num_sequences)
        else:
            _count(counter, step)
        for call in seen:
            variants = routing.variants(call, step)
            found.update(dict.fromkeys(variants))
            unknown.update({} if variants else {call: None})
    return StepCalls(tuple(found), tuple(unknown))


@dataclass(frozen=True, slots=True)
class StepCalls:
    """What steps call.

    Attributes:
        known: all that can be compiled ahead.
        unknown: calls of which only the number of rows that experts take is not known.
    """

    known: tuple[OpCall, ...]
    unknown: tuple[OpCall, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """One shape of a step; "prompt" and "prefill" hold prompt rows."""

    name: str
    num_rows: int
    start: int
    padded_rows: int
    num_logits: int = 1
    num_sequences: int = 1

    @property
    def has_prompt_rows(self) -> bool:
        return self.name in ("prompt", "prefill")


@dataclass(frozen=True, slots=True)
class _Routing:
    """How many rows the router gives this rank's experts."""

    config: ModelConfig
    num_ranks: int
    capacity: int

    def variants(self, call: OpCall, step: _Step) -> tuple[OpCall, ...]:
        """The call in every shape it may have; () where that depends on a prompt."""
        if call.op == _LOOKUP:
            return (_gathered(call),)
        draft = self.config.draft
        in_draft = step.name == "draft" and draft is not None
        top_k = draft.top_k if in_draft and draft else self.config.experts_per_token
        if not _is_routed(call, top_k):
            return (call,)
        places = _ROUTED[call.op]
        if not step.has_prompt_rows:
            most = call.arguments[0].shape[0]
            return tuple(call.with_rows(rows, places) for rows in range(1, most + 1))
        if not self.capacity:
            return ()
        num_experts = -(-self.config.num_experts // self.num_ranks)
        return (call.with_rows(num_experts * self.capacity, places),)


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
        if _is_routed(call, config.experts_per_token):
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


def _count(counter: StepCounter, step: _Step) -> None:
    counter.count(
        step.name,
        step.num_rows,
        step.start,
        path="prefill" if step.name == "prefill" else "decode",
        padded_rows=step.padded_rows,
        num_logits=step.num_logits,
        num_sequences=step.num_sequences,
    )


def _steps(config: ModelConfig, limits: EngineLimits, num_sequences: int) -> Iterator[_Step]:
    """Steps of every shape: they end in each context bucket."""
    for bucket in limits.context_buckets:
        for count in range(1, num_sequences + 1):
            yield from _decode_steps(config, limits, bucket, count)
        rows = limits.token_bucket
        if not limits.prefill_buckets and bucket >= rows:
            yield _Step("prompt", rows, bucket - rows, rows)
        for rows in limits.prefill_buckets:
            if bucket >= rows:
                yield _Step("prefill", rows, bucket - rows, rows)


def _decode_steps(
    config: ModelConfig, limits: EngineLimits, bucket: int, count: int
) -> Iterator[_Step]:
    """One row of each sequence, or with drafts a block of each, and the proposals themselves."""
    longest = 1 + (config.draft.block_size if limits.backtrack and config.draft else 0)
    for num_rows in range(1, min(longest, bucket) + 1):
        padded = limits.padded_rows(num_rows * count, has_prompt_rows=False)
        yield _Step("decode", num_rows, bucket - num_rows, padded, num_rows, count)
    if longest > 1:
        yield _Step("draft", longest - 1, bucket - 1, 0, num_sequences=count)


def _is_routed(call: OpCall, top_k: int) -> bool:
    """Whether its rows are what the router gave this rank's experts."""
    if call.op not in _ROUTED or call.arguments[0].shape[0] % top_k:
        return False
    return call.op != "swiglu" or _has_route_weight(call)  # without: the shared expert's


def _has_route_weight(call: OpCall) -> bool:
    return call.arguments[3].kind == "tensor"


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
