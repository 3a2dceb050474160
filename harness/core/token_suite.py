"""What a token comparison is made of: prompts, pairs of settings, and what they must show."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["Judge", "NearTieLimits", "Prompt", "TokenPair", "TokenSuite"]

Judge = Literal["equal", "near_tie"]

# bos, eos and pad of model.md §1.1: random prompts never contain them.
_NUM_SPECIAL_IDS = 3


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, by its ids or by a seed and a length, and what its run must have exercised.

    Attributes:
        name: "short", "long", ...; unique within the suite, becomes part of record keys.
        max_tokens: tokens to generate; with ignore_eos exactly so many.
        ids: explicit token ids; empty where the prompt is drawn.
        length, seed: of a drawn prompt; both 0 where ids are given.
        min_window_wraps: times the window ring must have been overwritten whole
            (`facts()["num_window_wraps"]`); fewer makes the verdict VACUOUS.
        min_blocks_excluded_share: share in [0, 1] of candidate blocks that must have been
            excluded (`facts()["min_blocks_excluded_share"]`); less makes the verdict VACUOUS.
    """

    name: str
    max_tokens: int
    ids: tuple[int, ...] = ()
    length: int = 0
    seed: int = 0
    min_window_wraps: int = 0
    min_blocks_excluded_share: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.ids) == bool(self.length):
            raise UsageError(f"prompt {self.name!r} needs either ids or a length, not both")
        if self.max_tokens < 1:
            raise UsageError(
                f"prompt {self.name!r}: max_tokens={self.max_tokens}; "
                "a prompt generates at least one token"
            )
        if self.length < 0:
            raise UsageError(
                f"prompt {self.name!r}: length={self.length}; it needs a positive length"
            )
        if not 0.0 <= self.min_blocks_excluded_share <= 1.0 or self.min_window_wraps < 0:
            raise UsageError(
                f"prompt {self.name!r}: min_blocks_excluded_share is a share in [0, 1] and "
                "min_window_wraps is at least 0"
            )

    @property
    def num_tokens(self) -> int:
        """Prompt length in tokens."""
        return len(self.ids) or self.length

    def token_ids(self, vocab_size: int) -> tuple[int, ...]:
        """The prompt's ids: given, or drawn uniformly from [3, vocab_size).

        Drawn from `random.Random(seed).random()`, whose stream Python guarantees across versions.

        Raises:
            UsageError: a given id is outside the vocabulary, or the vocabulary is too small.
        """
        if self.ids:
            for position, token in enumerate(self.ids):
                if not 0 <= token < vocab_size:
                    raise UsageError(
                        f"prompt {self.name!r}: id {token} at position {position} is outside "
                        f"the vocabulary of {vocab_size}; give ids from 0 to {vocab_size - 1}"
                    )
            return self.ids
        if vocab_size <= _NUM_SPECIAL_IDS:
            raise UsageError(f"vocabulary of {vocab_size} leaves no id for a random prompt")
        source = random.Random(self.seed)
        span = vocab_size - _NUM_SPECIAL_IDS
        return tuple(_NUM_SPECIAL_IDS + int(source.random() * span) for _ in range(self.length))


@dataclass(frozen=True, slots=True)
class NearTieLimits:
    """The guards of measurement.md §2 around near ties.

    Attributes:
        max_flip_share: near ties over compared positions (at least one is always allowed).
        min_forced_match_rate: top-1 agreement under teacher forcing.
        max_mean_kl_nats: mean KL(oracle || candidate) over positions.
        alpha: of the binomial test that flips go both ways.
        max_gap: upper end of the tie width tau, in logits.
    """

    max_flip_share: float = 0.01
    min_forced_match_rate: float = 0.99
    max_mean_kl_nats: float = 5e-3
    alpha: float = 0.001
    max_gap: float = 0.1


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A candidate setting held against an oracle setting.

    Attributes:
        name: "exact-cp2", ...; unique within the suite.
        candidate, oracle: settings; `checkpoint` is empty until `TokenSuite.at` fills it.
        judge: "equal": ids equal and |logit difference| <= logit_bound, no near tie exists.
            "near_tie": the rule of measurement.md §2.
        logit_bound: of the "equal" judge; 0.0 demands the same bits. None under "near_tie",
            where the bound comes from the noise.
        noise: settings that differ from the oracle only in the order of its sums (cp, chunk);
            their distance to the oracle is the noise N. Only and always under "near_tie".
        batch: prompts the candidate continues in one call, in the suite's order; the oracle
            always continues one alone. From 2 on both may be the same setting.
    """

    name: str
    candidate: EngineSettings
    oracle: EngineSettings
    judge: Judge
    logit_bound: float | None = None
    noise: tuple[EngineSettings, ...] = ()
    batch: int = 1

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UsageError(f"pair {self.name!r}: batch={self.batch}; it is at least 1")
        if self.judge not in ("equal", "near_tie"):
            raise UsageError(f"pair {self.name!r}: judge {self.judge!r} is 'equal' or 'near_tie'")
        if self.candidate == self.oracle and self.batch == 1:
            raise UsageError(f"pair {self.name!r}: candidate and oracle are the same setting")
        if (self.judge == "equal") != (self.logit_bound is not None):
            raise UsageError(f"pair {self.name!r}: judge 'equal', and only it, has a logit_bound")
        if (self.judge == "near_tie") != bool(self.noise):
            raise UsageError(f"pair {self.name!r}: judge 'near_tie', and only it, has noise runs")
        if self.candidate in self.noise:
            raise UsageError(f"pair {self.name!r}: the noise must not involve the candidate")

    @property
    def strict(self) -> bool:
        """True where ids must be equal and no near tie is excused."""
        return self.judge == "equal"

    def at(self, checkpoint: str) -> TokenPair:
        """The same pair on a checkpoint directory."""
        return replace(
            self,
            candidate=replace(self.candidate, checkpoint=checkpoint),
            oracle=replace(self.oracle, checkpoint=checkpoint),
            noise=tuple(replace(item, checkpoint=checkpoint) for item in self.noise),
        )


@dataclass(frozen=True, slots=True)
class TokenSuite:
    """A file of suites/tokens: every prompt is run under every pair.

    Attributes:
        name: the file's stem.
        checkpoint_variant: the tiny checkpoint it was written for ("tiny-A").
        prompts, pairs: in file order; names are unique.
        limits: guards of the near-tie judge.
        description: one line for people.
    """

    name: str
    checkpoint_variant: str
    prompts: tuple[Prompt, ...]
    pairs: tuple[TokenPair, ...]
    limits: NearTieLimits = field(default_factory=NearTieLimits)
    description: str = ""

    def __post_init__(self) -> None:
        for kind, names in (
            ("prompt", [prompt.name for prompt in self.prompts]),
            ("pair", [pair.name for pair in self.pairs]),
        ):
            if not names:
                raise UsageError(f"token suite {self.name!r} has no {kind}")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise UsageError(f"token suite {self.name!r}: {kind} {twice[0]!r} occurs twice")

    def at(self, checkpoint: str) -> TokenSuite:
        """The same suite with every setting on a checkpoint directory."""
        return replace(self, pairs=tuple(pair.at(checkpoint) for pair in self.pairs))

    @property
    def settings(self) -> tuple[EngineSettings, ...]:
        """Every distinct setting, in the order first needed (oracle, noise, candidate)."""
        ordered: dict[EngineSettings, None] = {}
        for pair in self.pairs:
            ordered.update(dict.fromkeys((pair.oracle, *pair.noise, pair.candidate)))
        return tuple(ordered)
