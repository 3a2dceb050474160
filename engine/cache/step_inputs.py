"""Index tensors of one step, made once on the host and shared by all layers.

Rows of a step are the chunks' tokens one after another, then padding. Attention reads a buffer
per layer laid out as [rings of the step's sequences | the step's own rows | compressed scope]:

    ring of sequence b      rows b*ring .. (b+1)*ring
    row i of the step       row B*ring + i
    entry j of sequence b   row B*ring + T + b*scope + j

Eager steps are as long as what they do. A step for compiled regions has the same shapes as every
other of its bucket (engine.graphs.buckets): sequences without tokens fill it up, it writes as many
cache rows as it has rows, and whose row is whose is a tensor.

Legend: T padded rows, B sequences, W window, F engram rows a token, N selected logits rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from engine.cache.state import CacheGeometry
from engine.engram.hashing import EngramHash
from engine.schedule.plan import NO_TOKENS, AttentionPath, StepPlan

__all__ = ["RatioInputs", "StepInputs", "build_step_inputs"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RatioInputs:
    """What layers of one compress ratio need.

    Attributes:
        scope: entries of a sequence's dense scope (context bucket / ratio).
        num_visible: [T] entries each row may see.
        scope_rows: [B*scope] rows of the pool that make up the scope.
        scope_offset: [T, 1] first buffer row of the row's own sequence's scope.
        group_sources: [G*ratio] rows of [tails | step rows] that make up each group.
        entry_rows: [G] pool rows the new entries are written to (page 0 for padding).
        entry_positions: [G] rotary position of each new entry.
        tail_sources, tail_rows: step rows that are kept, and where.
    """

    scope: int
    num_visible: torch.Tensor
    scope_rows: torch.Tensor
    scope_offset: torch.Tensor
    group_sources: torch.Tensor
    entry_rows: torch.Tensor
    entry_positions: torch.Tensor
    tail_sources: torch.Tensor
    tail_rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """See the module's docstring.

    Attributes:
        token_ids, positions: [T].
        is_real: [T] bool, False for padding.
        window_indices: [T, W] buffer rows, -1 for none.
        ring_rows: [B*ring] rows of a layer's ring tensor.
        ring_sources, ring_targets: step rows written to the ring after attention, and where.
        row_spans: rows of each sequence; () in a step for compiled regions.
        row_sequences: [T] number of each row's sequence, 0 for padding; None in eager steps.
        engram_rows: [layers, T, F], or None without engram.
        logits_rows: [N].
        path: how the step attends.
    """

    num_rows: int
    padded_rows: int
    num_sequences: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    is_real: torch.Tensor
    window_indices: torch.Tensor
    ring_rows: torch.Tensor
    ring_sources: torch.Tensor
    ring_targets: torch.Tensor
    row_spans: tuple[tuple[int, int], ...]
    row_sequences: torch.Tensor | None
    by_ratio: dict[int, RatioInputs]
    engram_rows: torch.Tensor | None
    logits_rows: torch.Tensor
    path: AttentionPath = "decode"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Per row of the step, without padding: sequence, position, first position of its chunk."""

    sequence: Ids
    position: Ids
    start: Ids
    slot: Ids
    first_row: Ids


def build_step_inputs(
    plan: StepPlan,
    geometry: CacheGeometry,
    ratios: frozenset[int],
    engram: EngramHash | None,
    device: torch.device,
    *,
    padded_sequences: int = 0,
) -> StepInputs:
    """Indices of one step.

    Args:
        ratios: compress ratios of the model, 0 excluded.
        engram: hash of the engram layers, None without any.
        padded_sequences: sequences of a step for compiled regions, at least as many as the plan
            has; 0 makes an eager step.
    """
    is_captured = padded_sequences > 0
    plan = _filled_up(plan, padded_sequences)
    rows = _rows(plan)
    padded = plan.padded_rows
    num_writes = padded if is_captured else 0
    kept = _last_rows(plan, geometry.window)

    def to_device(values: Ids) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    ring_slots = np.array([chunk.slot for chunk in plan.chunks], dtype=np.int64)
    ring_rows = (ring_slots[:, None] * geometry.ring + np.arange(geometry.ring)).ravel()
    return StepInputs(
        num_rows=plan.num_rows,
        padded_rows=padded,
        num_sequences=len(plan.chunks),
        token_ids=to_device(
            _padded(np.concatenate([chunk.token_ids for chunk in plan.chunks]), padded, 0)
        ),
        positions=to_device(_padded(rows.position, padded, 0)),
        is_real=torch.arange(padded, device=device) < plan.num_rows,
        window_indices=to_device(_window_indices(plan, rows, geometry)),
        ring_rows=to_device(ring_rows),
        ring_sources=to_device(_repeated(kept, num_writes)),
        ring_targets=to_device(
            _repeated(
                rows.slot[kept] * geometry.ring + rows.position[kept] % geometry.ring, num_writes
            )
        ),
        row_spans=() if is_captured else _row_spans(plan),
        row_sequences=to_device(_padded(rows.sequence, padded, 0)) if is_captured else None,
        by_ratio={
            ratio: _ratio_inputs(plan, rows, geometry, ratio, num_writes, to_device)
            for ratio in ratios
        },
        engram_rows=None if engram is None else to_device(_engram_rows(plan, engram)),
        logits_rows=to_device(_logits_rows(plan)),
        path=plan.path,
    )


def _padded(values: npt.NDArray[np.int64], length: int, fill: int) -> Ids:
    out = np.full((length, *values.shape[1:]), fill, dtype=np.int64)
    out[: len(values)] = values
    return out


def _filled_up(plan: StepPlan, num_sequences: int) -> StepPlan:
    """The plan with sequences without tokens behind its own."""
    missing = num_sequences - len(plan.chunks)
    if missing <= 0:
        return plan
    return replace(plan, chunks=(*plan.chunks, *[NO_TOKENS] * missing))


def _repeated(writes: Ids, length: int) -> Ids:
    """At least so many cache writes: the last is made again and again.

    A batch without work has none to repeat: its writes go to row 0 of slot 0, which nobody holds
    then, and whoever takes it writes first.
    """
    missing = length - len(writes)
    if missing <= 0:
        return writes
    return np.concatenate([writes, np.full(missing, writes[-1] if len(writes) else 0)])


def _row_spans(plan: StepPlan) -> tuple[tuple[int, int], ...]:
    ends = np.cumsum([len(chunk.token_ids) for chunk in plan.chunks]).tolist()
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def _rows(plan: StepPlan) -> _Rows:
    lengths = np.array([len(chunk.token_ids) for chunk in plan.chunks])
    firsts = np.cumsum(lengths) - lengths
    starts = np.array([chunk.start for chunk in plan.chunks])
    slots = np.array([chunk.slot for chunk in plan.chunks])
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    first_row, start = firsts[sequence], starts[sequence]
    position = start + np.arange(len(sequence)) - first_row
    return _Rows(sequence, position, start, slots[sequence], first_row)


def _last_rows(plan: StepPlan, count: int) -> Ids:
    """Rows of each chunk's last `count` tokens."""
    return np.concatenate(
        [np.arange(max(first, last - count), last) for first, last in _row_spans(plan)]
    )


def _window_indices(plan: StepPlan, rows: _Rows, geometry: CacheGeometry) -> Ids:
    wanted_TW = rows.position[:, None] + np.arange(1 - geometry.window, 1)
    in_ring = rows.sequence[:, None] * geometry.ring + wanted_TW % geometry.ring
    own_rows = len(plan.chunks) * geometry.ring + rows.first_row + 0
    in_step = own_rows[:, None] + wanted_TW - rows.start[:, None]
    indices = np.where(wanted_TW < rows.start[:, None], in_ring, in_step)
    return _padded(np.where(wanted_TW < 0, -1, indices), plan.padded_rows, -1)


def _ratio_inputs(
    plan: StepPlan,
    rows: _Rows,
    geometry: CacheGeometry,
    ratio: int,
    num_writes: int,
    to_device: object,
) -> RatioInputs:
    assert callable(to_device)
    scope = -(-plan.context // ratio)
    num_sequences = len(plan.chunks)
    first_scope_row = num_sequences * geometry.ring + plan.padded_rows
    offset = first_scope_row + rows.sequence * scope
    groups = _groups(plan, geometry, ratio)
    kept = _last_rows(plan, geometry.tail)
    return RatioInputs(
        scope=scope,
        num_visible=to_device(_padded((rows.position + 1) // ratio, plan.padded_rows, 0)),
        scope_rows=to_device(_scope_rows(plan, geometry, ratio, scope)),
        scope_offset=to_device(_padded(offset, plan.padded_rows, first_scope_row)[:, None]),
        group_sources=to_device(groups[0].ravel()),
        entry_rows=to_device(groups[1]),
        entry_positions=to_device(groups[2]),
        tail_sources=to_device(_repeated(kept, num_writes)),
        tail_rows=to_device(
            _repeated(
                rows.slot[kept] * geometry.tail + rows.position[kept] % geometry.tail, num_writes
            )
        ),
    )


def _scope_rows(plan: StepPlan, geometry: CacheGeometry, ratio: int, scope: int) -> Ids:
    per_page = geometry.page_size // ratio
    num_pages = -(-scope // per_page)
    tables = np.zeros((len(plan.chunks), num_pages), dtype=np.int64)
    for table, chunk in zip(tables, plan.chunks, strict=True):
        used = min(num_pages, len(chunk.pages))
        table[:used] = chunk.pages[:used]
    flat = tables[:, :, None] * per_page + np.arange(per_page)
    return flat.reshape(len(plan.chunks), -1)[:, :scope].ravel()


def _groups(plan: StepPlan, geometry: CacheGeometry, ratio: int) -> tuple[Ids, Ids, Ids]:
    """Sources [G, ratio], pool rows [G] and positions [G] of the groups a step completes.

    G depends on the padded width alone, so that launches and shapes do not vary with positions.
    """
    per_page = geometry.page_size // ratio
    tail_rows = geometry.num_slots * geometry.tail if ratio > 1 else 0
    sources, entries, positions = [], [], []
    for (first, _), chunk in zip(_row_spans(plan), plan.chunks, strict=True):
        group = np.arange(chunk.start // ratio, chunk.end // ratio)
        member = group[:, None] * ratio + np.arange(ratio)
        from_tail = chunk.slot * geometry.tail + member % geometry.tail
        from_step = tail_rows + first + member - chunk.start
        sources.append(np.where(member < chunk.start, from_tail, from_step))
        pages = np.asarray(chunk.pages, dtype=np.int64)
        entries.append(pages[group // per_page] * per_page + group % per_page)
        positions.append(group * ratio)
    width = plan.padded_rows if ratio == 1 else plan.padded_rows // ratio + len(plan.chunks)
    return (
        _padded(np.concatenate(sources), width, tail_rows),
        _padded(np.concatenate(entries), width, 0),
        _padded(np.concatenate(positions), width, 0),
    )


def _engram_rows(plan: StepPlan, engram: EngramHash) -> Ids:
    rows = np.concatenate(
        [engram.rows(chunk.history, chunk.token_ids) for chunk in plan.chunks], axis=1
    )
    out = np.zeros((rows.shape[0], plan.padded_rows, rows.shape[2]), dtype=np.int64)
    out[:, : rows.shape[1]] = rows
    return out


def _logits_rows(plan: StepPlan) -> Ids:
    return np.concatenate(
        [
            np.arange(last - chunk.num_logits, last)
            for (_, last), chunk in zip(_row_spans(plan), plan.chunks, strict=True)
        ]
    )
