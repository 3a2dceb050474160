"""Engines whose every logit is a formula, and the ways in which they go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.core.engine_face import EngineSettings, Generation, StepShape
from harness.core.errors import RankError, UsageError
from harness.run.clock import ManualClock

VOCAB_SIZE = 16

# (settings, prefix) -> logits [V] of what follows
LogitsOf = Callable[[EngineSettings, tuple[int, ...]], np.ndarray]


def clean_logits(settings: EngineSettings, prefix: tuple[int, ...]) -> np.ndarray:
    """Distinct logits of width 8 with a clear winner, decided by the last id and the length."""
    winner = (prefix[-1] * 7 + len(prefix) * 3 + 1) % VOCAB_SIZE
    logits = 4.0 - 0.5 * ((np.arange(VOCAB_SIZE) - winner) % VOCAB_SIZE)
    return logits.astype(np.float64)


@dataclass
class FakeEngine:
    """One opened setting."""

    settings: EngineSettings
    world: FakeWorld

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        ignore_eos: bool = True,
        want_logits: bool = False,
    ) -> list[Generation]:
        self.world.note(self.settings, "generate")
        return [self._generate(tuple(prompt), max_tokens, want_logits) for prompt in prompts]

    def _generate(self, prompt: tuple[int, ...], max_tokens: int, want: bool) -> Generation:
        limit = self.settings.max_model_len
        if limit and len(prompt) + max_tokens > limit:
            raise UsageError(f"{len(prompt)} + {max_tokens} tokens exceed max_model_len {limit}")
        clock, prefix, stamps, rows = self.world.clock, prompt, [], []
        sent = clock.monotonic_ns()
        clock.advance_ms(len(prompt))
        for number in range(max_tokens - self.world.num_missing_tokens):
            if number:
                clock.advance_ms(10 * self.settings.cp)
            rows.append(self.world.logits(self.settings, prefix))
            prefix = (*prefix, int(np.argmax(rows[-1])))
            stamps.append(clock.monotonic_ns())
        return Generation(
            token_ids=prefix[len(prompt) :],
            finish_reason="length",
            t_send_ns=sent,
            token_ns=tuple(stamps),
            prompt_len=len(prompt),
            logits=np.array(rows) if want else None,
            num_prefill_steps=1,
            bucket=16,
            padding_share=0.5,
            counters=dict(self.world.counters),
            steps=(StepShape(len(prompt), 16, 64, "decode"), *[StepShape(1, 1, 64, "decode")] * 2),
        )

    def score(self, ids: Sequence[int]) -> np.ndarray:
        self.world.note(self.settings, "score")
        ids = tuple(ids)
        return np.array(
            [self.world.logits(self.settings, ids[: end + 1]) for end in range(len(ids))]
        )

    def facts(self) -> Mapping[str, float]:
        return self.world.facts

    def close(self) -> None:
        self.world.closed.append(self.settings)

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@dataclass
class FakeWorld:
    """A factory of fake engines and the record of what was asked of them.

    `break_at(settings, number)` raises `error` at the number-th call of that setting.
    """

    logits: LogitsOf = clean_logits
    facts: dict[str, float] = field(
        default_factory=lambda: {"num_window_wraps": 5.0, "min_blocks_excluded_share": 0.75}
    )
    counters: dict[str, float] = field(default_factory=lambda: {"collectives_per_step": 20.0})
    num_missing_tokens: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    opened: list[EngineSettings] = field(default_factory=list)
    closed: list[EngineSettings] = field(default_factory=list)
    calls: list[tuple[EngineSettings, str]] = field(default_factory=list)
    breaks: dict[tuple[EngineSettings, int], BaseException] = field(default_factory=dict)

    def __call__(self, settings: EngineSettings) -> FakeEngine:
        self._break(settings, 0)
        self.opened.append(settings)
        return FakeEngine(settings, self)

    def break_at(self, settings: EngineSettings, number: int, error: BaseException) -> None:
        """Raise at the number-th call of a setting; 0 is its opening."""
        self.breaks[settings, number] = error

    def note(self, settings: EngineSettings, call: str) -> None:
        self.calls.append((settings, call))
        self._break(settings, sum(one == settings for one, _ in self.calls))

    def _break(self, settings: EngineSettings, number: int) -> None:
        error = self.breaks.get((settings, number))
        if error is not None:
            raise error


def hang() -> RankError:
    return RankError(1, "gave no answer within 60 s", "rank 1: all_reduce #7")


def crash() -> RankError:
    return RankError(2, "died with signal 9", "Traceback ...")
