"""Records every op's output and the streams after each layer, of one prompt in an open engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.llm import LLM
from engine.parallel.executor import LockstepExecutor, SoloExecutor
from engine.schedule.plan import StepPlan
from engine.worker import StepOutput, Worker
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError
from harness.core.op_table import OpTable
from harness.run.bisect import HEAD, Capture, OpCall

__all__ = ["capture_prompt", "require_eager"]


def capture_prompt(
    engine: LLM,
    ids: Sequence[int],
    forced: Mapping[int, torch.Tensor] | None = None,
    swapped: OpTable | None = None,
) -> Capture:
    """Score `ids` and keep what every rank computed on their rows.

    Args:
        engine: its ranks run in this process (one rank, or `LLM.in_one_process`). Of several
            batches the first is heard: it is where a lone prompt goes.
        forced: streams by layer that replace the engine's own after each layer.
        swapped: ops that are called on the engine's arguments beside its own; their outputs are
            kept, and the engine goes on with its own.

    Raises:
        UsageError: the ranks are other processes, or their layers compiled regions.
    """
    require_eager(engine.settings)
    records = [_RankRecord(worker, forced, swapped) for worker in _workers(engine)]
    for record in records:
        record.attach()
    try:
        engine.score(ids)
    finally:
        for record in records:
            record.detach()
    return _joined(records)


def require_eager(settings: EngineSettings) -> None:
    """Only an op that is called one by one can be heard.

    Raises:
        UsageError: layers run as compiled regions, whose ops nobody hears.
    """
    if not settings.enforce_eager:
        raise UsageError(
            f"{settings.label!r} runs layers as compiled regions, whose ops nobody hears: choose "
            "settings with enforce_eager, and compare compiled ones with `tokens`"
        )


def _workers(engine: LLM) -> list[Worker]:
    executor = engine.executor
    if isinstance(executor, LockstepExecutor):
        return executor.workers[: engine.topology.cp]
    if isinstance(executor, SoloExecutor):
        return [executor.worker]
    raise UsageError("ranks in other processes cannot be observed; run them in lockstep")


class _RankRecord:
    """What one rank computed; step by step, joined over steps at the end."""

    def __init__(
        self,
        worker: Worker,
        forced: Mapping[int, torch.Tensor] | None,
        swapped: OpTable | None,
    ) -> None:
        self._worker = worker
        self._forced = forced
        self._swapped = swapped
        self._layer = 0
        self._plan: StepPlan | None = None
        self._counts: Counter[tuple[int, str]] = Counter()
        self.num_layers = worker.config.num_layers
        self.rows: list[int] = []
        self.streams: dict[int, list[torch.Tensor]] = {}
        self.outputs: dict[OpCall, list[tuple[torch.Tensor, ...]]] = {}

    def attach(self) -> None:
        """Listen to the rank's steps, layers and ops."""
        worker, execute = self._worker, self._worker.execute

        def heard(plan: StepPlan) -> StepOutput:
            self._plan, self._layer = plan, 0
            self._counts.clear()
            self.rows.append(plan.num_rows)
            return execute(plan)

        worker.model.stream_hook = self._hear_layer
        worker.ops.observer = self._hear_op
        setattr(worker, "execute", heard)  # noqa: B010 - this one object listens, not its class

    def detach(self) -> None:
        """Leave the rank as it was."""
        self._worker.model.stream_hook = None
        self._worker.ops.observer = None
        del self._worker.execute  # the class's own is found again

    def _hear_layer(self, layer: int, streams: torch.Tensor) -> torch.Tensor:
        assert self._plan is not None
        rows = self._plan.num_rows
        self.streams.setdefault(layer, []).append(streams[:rows].clone())
        self._layer = layer + 1
        if self._forced is None:
            return streams
        start = self._plan.chunks[0].start
        replaced = streams.clone()
        replaced[:rows] = self._forced[layer][start : start + rows].to(streams.dtype)
        return replaced

    def _hear_op(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        layer = HEAD if self._layer == self.num_layers else self._layer
        number = self._counts[layer, name]
        self._counts[layer, name] += 1
        if self._swapped is not None:
            result = self._swapped.ops[name](*arguments, numerics=self._worker.ops.numerics)
        results = result if isinstance(result, tuple) else (result,)
        by_pair = name == "linear_fp4_grouped" or (name == "swiglu" and arguments[-1] is not None)
        kept = tuple(one.clone() if by_pair else self._real_rows(one) for one in results)
        self.outputs.setdefault(OpCall(layer, name, number), []).append(kept)

    def _real_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Without the step's padding, which holds what no one reads."""
        assert self._plan is not None
        if tensor.dim() and tensor.shape[0] == self._plan.padded_rows:
            return tensor[: self._plan.num_rows].clone()
        return tensor.clone()


def _joined(records: Sequence[_RankRecord]) -> Capture:
    first = records[0]
    streams = {layer: torch.cat(steps) for layer, steps in first.streams.items()}
    calls = dict.fromkeys(call for record in records for call in record.outputs)
    outputs = {
        call: _by_step([r.outputs[call] for r in records if call in r.outputs]) for call in calls
    }
    return Capture(streams, tuple(first.rows), outputs, _first_desync(records))


def _by_step(ranks: Sequence[list[tuple[torch.Tensor, ...]]]) -> list[list[list[torch.Tensor]]]:
    """rank -> step -> output as step -> output -> rank."""
    return [
        [list(parts) for parts in zip(*steps, strict=True)] for steps in zip(*ranks, strict=False)
    ]


def _first_desync(records: Sequence[_RankRecord]) -> tuple[int, int] | None:
    for layer, steps in records[0].streams.items():
        for rank, record in enumerate(records):
            pairs = zip(steps, record.streams[layer], strict=True)
            if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
                return layer, rank
    return None
