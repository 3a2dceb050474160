"""The offline engine: `with LLM(EngineSettings(...)) as llm: llm.generate(...)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from engine.config.limits import EngineLimits, resolve_limits
from engine.config.model import ModelConfig
from engine.config.parse import load_model_config
from engine.device.neuron import num_compiled, require_device
from engine.graphs.compilers import require_compiler
from engine.parallel.batches import Batches
from engine.parallel.executor import Executor, ExecutorFactory, LockstepExecutor, SoloExecutor
from engine.parallel.launch import Launch
from engine.parallel.processes import ProcessExecutor
from engine.parallel.topology import Topology
from engine.parallel.torchrun import TorchrunExecutor
from engine.schedule.choice import TokenChooser
from engine.schedule.distribution import SamplingRule
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from engine.weights.layout import RankLayout
from engine.weights.shard_check import check_shards
from engine.worker import resolve_numerics
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import UsageError

__all__ = ["LLM"]

_GREEDY = SamplingRule()
_TOLD_TOTALS = ("compile_events", "moe_overflows", "moe_dense_reruns")


class LLM:
    """An engine at work (harness.core.engine_face.EngineFace).

    One rank runs in this process, more in processes of their own that end with it. With ep > cp
    every cp ranks have a batch of their own, and requests are dealt to the batches. One thread at
    a time. Under torchrun every rank opens it: rank 0 gets the engine, the constructor of the
    others serves its steps and ends their program (engine.parallel.torchrun).

    Args:
        settings: see EngineSettings.
        executor: who runs the steps; None chooses by the number of ranks.

    Raises:
        InputError: the checkpoint's files are wrong.
        UsageError: the settings cannot be carried out.
        RankError: a rank did not come up.
    """

    def __init__(
        self, settings: EngineSettings, *, executor: ExecutorFactory | None = None
    ) -> None:
        self._settings = settings
        self._config = load_model_config(settings.checkpoint)
        self._limits = resolve_limits(settings, self._config)
        self._topology = Topology.of(settings)
        # Building the layout refuses a cp that does not divide the heads.
        RankLayout(self._config, resolve_numerics(settings), 0, settings.cp)
        launch = Launch.from_environment() if executor is None else None
        if launch is None:
            check_shards(settings.checkpoint)
        if settings.device != "cpu":
            num_ranks = launch.local_size if launch else self._topology.num_ranks
            require_device(settings.device, num_ranks, resolve_numerics(settings))
        if not settings.enforce_eager:
            require_compiler(settings.compile_backend, settings.device)
        if settings.num_threads:
            torch.set_num_threads(settings.num_threads)
        if executor is None:
            executor = _executor(self._topology, launch)
        self._batches = Batches(self._topology, self._new_scheduler)
        self._num_requests = 0
        self._facts: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._compiled_before = 0 if settings.device == "cpu" else num_compiled()
        self._closed = False
        self._executor: Executor = executor(settings, self._config, self._limits)

    @classmethod
    def in_one_process(cls, settings: EngineSettings) -> LLM:
        """The partition into ranks, computed here in rank order."""
        return cls(settings, executor=LockstepExecutor)

    @property
    def settings(self) -> EngineSettings:
        """What it was opened with."""
        return self._settings

    @property
    def config(self) -> ModelConfig:
        """The loaded checkpoint's configuration."""
        return self._config

    @property
    def limits(self) -> EngineLimits:
        """Lengths, buckets and pages in force."""
        return self._limits

    @property
    def executor(self) -> Executor:
        """Who runs the steps."""
        return self._executor

    @property
    def vocab_size(self) -> int:
        """Of the loaded checkpoint."""
        return self._config.vocab_size

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        ignore_eos: bool = True,
        want_logits: bool = False,
        on_token: Callable[[int, int], object] | None = None,
        sampling: SamplingRule | Sequence[SamplingRule] = _GREEDY,
    ) -> list[Generation]:
        """Continuation of each prompt, greedy unless told otherwise; see EngineFace.generate.

        Args:
            on_token: called with (prompt's index, token id) as soon as a step has given it.
            sampling: of all prompts, or of each.
        """
        if max_tokens < 1:
            raise UsageError(f"max_tokens={max_tokens}: it is at least 1")
        rules = [sampling] * len(prompts) if isinstance(sampling, SamplingRule) else sampling
        if len(rules) != len(prompts):
            raise UsageError(f"{len(rules)} sampling rules for {len(prompts)} prompts: one each")
        requests = [
            self._request(
                prompt, max_tokens=max_tokens, ignore_eos=ignore_eos, want_logits=want_logits
            )
            for prompt in prompts
        ]
        for request, rule in zip(requests, rules, strict=True):
            if not rule.is_greedy:
                request.chooser = TokenChooser(rule, self._config.eos_token_id)
        before = self.totals
        self._run(requests, on_token)
        excluded = [share for request in requests for share in request.blocks_excluded]
        self._facts = self._collect_facts(requests, excluded)
        after = self.totals
        for name in _TOLD_TOTALS:
            if name in after:
                self._facts[f"num_{name}"] = after[name] - before.get(name, 0.0)
        return [_generation(request) for request in requests]

    def score(self, ids: Sequence[int]) -> npt.NDArray[np.floating]:
        """Teacher-forced logits [len(ids), V]; see EngineFace.score."""
        request = self._request(ids, max_tokens=0, ignore_eos=True, want_logits=True)
        request.scores_prompt = True
        self._run([request])
        self._facts = self._collect_facts([request], request.blocks_excluded[-1:])
        return np.concatenate(request.logits)

    @property
    def totals(self) -> Mapping[str, float]:
        """Counts of all steps since it was opened, rank 0's, e.g. "collectives"; any thread.

        "compile_events" is there where it is known: graphs that were compiled, on a device or
        for regions.
        """
        totals = {
            name: n
            for name, n in self._totals.items()
            if not name.endswith("_per_layer") and name != "graphs"
        }
        if self._settings.device != "cpu":
            totals["compile_events"] = float(num_compiled() - self._compiled_before)
        return totals

    @property
    def topology(self) -> Topology:
        """Which rank works on which batch."""
        return self._topology

    @property
    def scheduler(self) -> Batches:
        """What waits and runs in all batches, and how many pages are held."""
        return self._batches

    def submit(self, request: Request) -> None:
        """Queue a request that `step` will serve beside all others (continuous batching).

        Raises:
            UsageError: the prompt is empty, holds an unknown id, or could never fit.
        """
        self._check_prompt(request.tokens[: request.prompt_len])
        self._batches.add(request)
        request.t_send_ns = time.perf_counter_ns()

    def step(self) -> None:
        """One step for everything that is queued; `scheduler.has_work` must hold.

        Raises:
            UsageError: the engine is closed.
            RankError: a rank died or hung; the engine cannot go on.
        """
        if self._closed:
            raise UsageError("this engine is closed: open another")
        plans = self._batches.next_plans()
        outputs = self._executor.execute(plans)
        self._batches.apply(plans, outputs, time.perf_counter_ns())
        self._add_up(outputs[0].counters)
        if self._settings.speculative:
            self._draft()

    def facts(self) -> Mapping[str, float]:
        """Facts of the last `generate` or `score`.

        num_window_wraps: times the shortest sequence went round its window.
        min_blocks_excluded_share, max_…: share of visible candidate blocks left out, over the
        rows that a token was taken from (of `score`: the last row).
        num_positions: rows of the shortest sequence.
        num_compile_events: graphs that the last `generate` had to compile, where it is known.
        num_moe_overflows, num_moe_dense_reruns: of its steps, where experts have a capacity.
        """
        return dict(self._facts)

    def close(self) -> None:
        """End every rank; idempotent."""
        if not self._closed:
            self._closed = True
            self._executor.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _request(
        self, prompt: Sequence[int], *, max_tokens: int, ignore_eos: bool, want_logits: bool
    ) -> Request:
        self._check_prompt(prompt)
        self._num_requests += 1
        return Request(
            request_id=self._num_requests,
            prompt_len=len(prompt),
            tokens=[int(token) for token in prompt],
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            want_logits=want_logits,
        )

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        limit = self._limits.max_model_len
        if len(prompt) == 0:
            raise UsageError("prompt is empty: it needs at least one token id")
        if len(prompt) > limit:
            raise UsageError(
                f"prompt has {len(prompt)} tokens: max_model_len is {limit}; shorten the prompt, "
                "or give a greater max_model_len"
            )
        for position, token in enumerate(prompt):
            if not 0 <= int(token) < self.vocab_size:
                raise UsageError(
                    f"prompt[{position}] is {token}: token ids lie in 0..{self.vocab_size - 1}; "
                    "give ids of this checkpoint's tokenizer"
                )

    def _run(
        self,
        requests: Sequence[Request],
        on_token: Callable[[int, int], object] | None = None,
    ) -> None:
        if self._closed:
            raise UsageError("this engine is closed: open another")
        try:
            for request in requests:
                self._batches.add(request)
                request.t_send_ns = time.perf_counter_ns()
            counts = [0] * len(requests)
            while self._batches.has_work:
                self.step()
                if on_token is not None:
                    _tell_new_tokens(requests, counts, on_token)
        except BaseException:
            for request in requests:
                self._batches.abort(request)
            raise

    def _draft(self) -> None:
        plans = self._batches.next_drafts()
        if plans:
            outputs = self._executor.propose(plans)
            self._batches.take_drafts(outputs, self._settings.confidence_threshold)

    def _new_scheduler(self) -> Scheduler:
        engram = self._config.engram
        return Scheduler(
            self._limits,
            num_lookback=engram.max_ngram - 1 if engram else 0,
            eos_token_id=self._config.eos_token_id,
        )

    def _add_up(self, counters: Mapping[str, float]) -> None:
        # Replaced, not changed: another thread may be reading it.
        totals = dict(self._totals)
        for name, count in counters.items():
            totals[name] = totals.get(name, 0.0) + count
        self._totals = totals

    def _collect_facts(
        self, requests: Sequence[Request], excluded: Sequence[float]
    ) -> dict[str, float]:
        num_positions = min((request.num_computed for request in requests), default=0)
        facts = {
            "num_positions": float(num_positions),
            "num_window_wraps": float(max(0, num_positions - 1) // self._config.window),
        }
        if excluded:
            facts["min_blocks_excluded_share"] = min(excluded)
            facts["max_blocks_excluded_share"] = max(excluded)
        return facts


def _executor(topology: Topology, launch: Launch | None) -> ExecutorFactory:
    """One rank here, several in processes of their own, or those that torchrun has started."""
    if launch is not None:
        return partial(TorchrunExecutor, launch=launch)
    return SoloExecutor if topology.num_ranks == 1 else ProcessExecutor


def _tell_new_tokens(
    requests: Sequence[Request], counts: list[int], on_token: Callable[[int, int], object]
) -> None:
    """Report tokens beyond `counts`, request by request, and bring the counts up to date."""
    for index, request in enumerate(requests):
        for token in request.tokens[request.prompt_len + counts[index] :]:
            on_token(index, token)
        counts[index] = request.num_generated


def _generation(request: Request) -> Generation:
    padding = request.first_padded_rows - request.first_num_rows
    return Generation(
        token_ids=tuple(request.tokens[request.prompt_len :]),
        finish_reason=request.finish_reason,
        t_send_ns=request.t_send_ns,
        token_ns=tuple(request.token_ns),
        prompt_len=request.prompt_len,
        logits=np.concatenate(request.logits) if request.want_logits else None,
        num_prefill_steps=request.num_prefill_steps,
        bucket=request.first_padded_rows,
        padding_share=padding / request.first_padded_rows,
        counters=request.told_counters,
        steps=tuple(request.steps),
    )
