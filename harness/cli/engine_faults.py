"""Faults of an engine, put into one that is open: what token match must find.

Each fault changes one thing in one process: the indices of a step, an op of one rank, a part of
the group, the page pool. Ranks run in lockstep in this process, so a fault can sit on one rank
and nothing outlives the engine. The engine's private parts are reached on purpose: a fault is a
change of its code, made at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine.cache.step_inputs import RatioInputs, StepInputs
from engine.llm import LLM
from engine.parallel.executor import LockstepExecutor, SoloExecutor
from engine.parallel.expert_exchange import ExpertRows
from engine.schedule.request import Request
from engine.worker import Worker
from harness.core.engine_face import Generation
from harness.core.weights import QuantisedWeight

__all__ = ["ENGINE_FAULTS", "Fault"]

Fault = Callable[[LLM], None]
InputChange = Callable[[StepInputs, Worker], StepInputs]

_SKIPPED_LABEL = "moe.2"
# The page pool takes the pages back after so many tokens.
_REUSED_AFTER = 3


def _workers(engine: LLM) -> list[Worker]:
    executor = engine.executor
    if isinstance(executor, LockstepExecutor):
        return executor.workers
    assert isinstance(executor, SoloExecutor)
    return [executor.worker]


def _replace(owner: object, name: str, make: Callable[[Any], Any]) -> None:
    """Put make(present) in the place of an attribute of one object."""
    setattr(owner, name, make(getattr(owner, name)))


def _on_inputs(change: InputChange, *, only_rank: int | None = None) -> Fault:
    """A fault in what the layers of a step share."""

    def put(engine: LLM) -> None:
        for worker in _workers(engine):
            if only_rank not in (None, worker.group.rank):
                continue

            def make(right: Any, worker: Worker = worker) -> Any:
                return lambda inputs, state: right(change(inputs, worker), state)

            _replace(worker.model, "context", make)

    return put


def _on_op(name: str, change: Callable[..., tuple[Any, ...]], *, only_rank: int) -> Fault:
    """A fault in the arguments of one op on one rank."""

    def put(engine: LLM) -> None:
        worker = _workers(engine)[only_rank]
        _replace(worker.ops, name, lambda right: lambda *args: right(*change(*args)))

    return put


def _decodes(inputs: StepInputs) -> bool:
    return inputs.num_rows == inputs.num_sequences and bool((inputs.positions[0] > 0).item())


def _by_ratio(
    inputs: StepInputs, change: Callable[[RatioInputs], RatioInputs]
) -> dict[int, RatioInputs]:
    return {ratio: change(one) for ratio, one in inputs.by_ratio.items()}


def _window_off_by_one(inputs: StepInputs, _: Worker) -> StepInputs:
    """The oldest key of the window is left out."""
    indices = inputs.window_indices.clone()
    indices[:, 0] = -1
    return replace(inputs, window_indices=indices)


def _stale_page(inputs: StepInputs, _: Worker) -> StepInputs:
    """Entries made while decoding land on the scratch page: readers find what was there before."""
    if not _decodes(inputs):
        return inputs
    return replace(
        inputs,
        by_ratio=_by_ratio(
            inputs, lambda one: replace(one, entry_rows=torch.zeros_like(one.entry_rows))
        ),
    )


def _ring_slot_off_by_one(inputs: StepInputs, worker: Worker) -> StepInputs:
    """A decoded row is written one slot further round its window ring."""
    if not _decodes(inputs):
        return inputs
    ring = worker.state.geometry.ring
    targets = inputs.ring_targets
    return replace(inputs, ring_targets=targets // ring * ring + (targets + 1) % ring)


def _newest_entry_hidden(inputs: StepInputs, _: Worker) -> StepInputs:
    """The causal mask of compressed entries says < where it should say <=."""
    return replace(
        inputs,
        by_ratio=_by_ratio(
            inputs, lambda one: replace(one, num_visible=(one.num_visible - 1).clamp(min=0))
        ),
    )


def _position_off_by_one(inputs: StepInputs, _: Worker) -> StepInputs:
    """Decoded rows are rotated as if they stood one position later."""
    return replace(inputs, positions=inputs.positions + 1) if _decodes(inputs) else inputs


def _padding_leaks(inputs: StepInputs, _: Worker) -> StepInputs:
    """Where a window has no key, the first row of padding is attended to."""
    if inputs.padded_rows == inputs.num_rows:
        return inputs
    first_padding = inputs.ring_rows.shape[0] + inputs.num_rows
    indices = inputs.window_indices
    return replace(inputs, window_indices=torch.where(indices < 0, first_padding, indices))


def _full_bucket_loses_a_row(inputs: StepInputs, _: Worker) -> StepInputs:
    """A step that fills its token bucket treats its last row as padding."""
    if inputs.num_rows < inputs.padded_rows:
        return inputs
    is_real = inputs.is_real.clone()
    is_real[-1] = False
    return replace(inputs, is_real=is_real)


def _seed_skew(inputs: StepInputs, worker: Worker) -> StepInputs:
    """The rank drew its prompt with the next seed."""
    if _decodes(inputs):
        return inputs
    skewed = (inputs.token_ids + 1) % worker.config.vocab_size
    return replace(inputs, token_ids=torch.where(inputs.is_real, skewed, inputs.token_ids))


def _tail_lost(engine: LLM) -> None:
    """The compressor forgets its unfinished group where a prompt is cut into chunks."""

    def make(right: Any) -> Any:
        def context(inputs: StepInputs, state: Any) -> Any:
            if inputs.num_rows > 1 and bool((inputs.positions[0] > 0).item()):
                for tail in state.tails.values():
                    tail.zero_()
            return right(inputs, state)

        return context

    for worker in _workers(engine):
        _replace(worker.model, "context", make)


def _rank_local_argmax(engine: LLM) -> None:
    """Each rank samples from its own rows of the vocabulary and asks nobody."""
    for worker in _workers(engine):
        span = worker.layout.vocab_span(worker.config.vocab_size)
        assert span is not None
        first, last = span

        def make(right: Any, first: int = first, last: int = last) -> Any:
            return lambda logits: tuple(first + one for one in right(logits[:, first:last]))

        _replace(worker._sampler, "from_logits", make)


def _skipped_collective(engine: LLM) -> None:
    """Rank 1 leaves one sum of a decode step out."""

    def make(right: Any) -> Any:
        def total(part: torch.Tensor, label: str) -> Any:
            skips = label == _SKIPPED_LABEL and part.shape[0] == 1
            return part if skips else right(part, label)

        return total

    _replace(_workers(engine)[1].group, "sum", make)


def _wrong_expert_shard(engine: LLM) -> None:
    """Rank 1 answers for the experts of rank 0 with its own weights."""
    for block in _workers(engine)[1].model._blocks:
        first, last = block._moe._span
        block._moe._span = (0, last - first)


def _sums_of_another_batch(engine: LLM) -> None:
    """Rank 1 sends each batch the sums of its neighbour's rows."""

    def make(right: Any) -> Any:
        return lambda blocks, label: right(blocks.roll(1, 0), label)

    _replace(_workers(engine)[1].experts, "scatter_sum", make)


def _experts_off_by_one_on_the_wire(engine: LLM) -> None:
    """Rank 0 packs the expert ids of its rows one too high."""

    def make(right: Any) -> Any:
        def spread(rows: ExpertRows, layer: int) -> Any:
            num_experts = _workers(engine)[0].config.num_experts
            ids = torch.where(rows.expert_ids < 0, -1, (rows.expert_ids + 1) % num_experts)
            return right(replace(rows, expert_ids=ids), layer)

        return spread

    _replace(_workers(engine)[0]._exchange, "spread", make)


def _overflow_ignored(engine: LLM) -> None:
    """Rows beyond an expert's capacity are dropped, and no layer runs again."""
    for worker in _workers(engine):
        _replace(worker._exchange, "any_overflows", lambda _: lambda *_: False)


def _overflow_decided_alone(engine: LLM) -> None:
    """Each rank runs its experts again by its own count."""
    for worker in _workers(engine):

        def make(right: Any) -> Any:
            def own(part: torch.Tensor, label: str) -> torch.Tensor:
                right(part, label)
                return part

            return own

        _replace(worker.experts, "max", make)


def _page_reused_too_early(engine: LLM) -> None:
    """A running request's pages are handed to another."""

    def make(right: Callable[..., list[Generation]]) -> Callable[..., list[Generation]]:
        def generate(prompts: Sequence[Sequence[int]], **options: Any) -> list[Generation]:
            counted = 0

            def on_token(_: int, __: int) -> None:
                nonlocal counted
                counted += 1
                if counted == _REUSED_AFTER:
                    _hand_on_pages(engine, prompts[0])

            generations = right(prompts, on_token=on_token, **options)
            pool = engine.scheduler.schedulers[0].pool
            pool._free_pages = sorted(set(pool._free_pages), reverse=True)
            return generations

        return generate

    _replace(engine, "generate", make)


def _hand_on_pages(engine: LLM, prompt: Sequence[int]) -> None:
    scheduler = engine.scheduler.schedulers[0]
    running, pool = scheduler.running[0], scheduler.pool
    pool._free_pages = sorted((*pool._free_pages, *running.pages), reverse=True)
    neighbour = Request(
        request_id=-1,
        prompt_len=len(prompt),
        tokens=list(reversed(prompt)),
        max_tokens=1,
        ignore_eos=True,
        want_logits=False,
    )
    engine.submit(neighbour)


def _neighbouring_scale(x: Any, weight: QuantisedWeight, sizes: Any) -> tuple[Any, ...]:
    return x, QuantisedWeight(weight.codes, weight.scale.roll(1, -1), weight.layout), sizes


def _without_sink(q: Any, kv: Any, indices: Any, sink: Any, scale: Any) -> tuple[Any, ...]:
    return q, kv, indices, sink - 1e4, scale


ENGINE_FAULTS: dict[str, Fault] = {
    "window off by one": _on_inputs(_window_off_by_one),
    "stale page": _on_inputs(_stale_page),
    "rank-local argmax": _rank_local_argmax,
    "skipped collective": _skipped_collective,
    "wrong expert shard": _wrong_expert_shard,
    "seed skew": _on_inputs(_seed_skew, only_rank=0),
    "sink dropped on one rank": _on_op("sparse_attention", _without_sink, only_rank=1),
    "compressor tail lost at a chunk border": _tail_lost,
    "padding leak": _on_inputs(_padding_leaks),
    "bucket off by one": _on_inputs(_full_bucket_loses_a_row),
    "scale of the neighbouring block": _on_op(
        "linear_fp4_grouped", _neighbouring_scale, only_rank=0
    ),
    "page reused too early": _page_reused_too_early,
    "sums of another batch": _sums_of_another_batch,
    "experts off by one on the wire": _experts_off_by_one_on_the_wire,
    "overflow ignored": _overflow_ignored,
    "overflow decided alone": _overflow_decided_alone,
    "ring slot off by one": _on_inputs(_ring_slot_off_by_one),
    "newest entry hidden": _on_inputs(_newest_entry_hidden),
    "position off by one": _on_inputs(_position_off_by_one),
}
"""By name; `harness.cli.fault_cases` says on which prompt each shows, and where."""
