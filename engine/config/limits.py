"""What one engine can hold: lengths, buckets, pages (port.md R5, R6, R9)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.model import ModelConfig
from harness.core.engine_face import EngineSettings
from harness.core.errors import UsageError

__all__ = ["EngineLimits", "resolve_limits"]

_TINY_HIDDEN = 2048
_DEFAULT_NUM_SEQS = 8
# A prefill step takes so many token buckets of prompt rows unless told otherwise: 512 at 128.
_PREFILL_TOKEN_BUCKETS = 4
_ZERO_IS_DEFAULT = (
    "max_model_len",
    "max_num_batched_tokens",
    "token_bucket",
    "page_size",
    "num_kv_blocks",
    "num_threads",
)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Resolved limits; every field is in tokens unless its name says otherwise.

    Attributes:
        max_model_len: prompt plus output of one request.
        max_num_batched_tokens: rows of one step that hold prompt tokens.
        token_bucket: steps with prompt rows are padded to a multiple of it.
        prefill_buckets: ascending; prompts run in steps of their own, through prefill attention,
            padded to the smallest that covers them. (): prompts run as decode-shaped steps.
        context_buckets: ascending; the last one is max_model_len.
        page_size: tokens of one KV page.
        num_pages: pages of the pool, the scratch page 0 included.
        max_num_seqs: sequences with state at one time.
        backtrack: rows that may be rolled back (0 without speculation).
    """

    max_model_len: int
    max_num_batched_tokens: int
    token_bucket: int
    context_buckets: tuple[int, ...]
    page_size: int
    num_pages: int
    max_num_seqs: int
    backtrack: int = 0
    prefill_buckets: tuple[int, ...] = ()

    def pages_for(self, num_tokens: int) -> int:
        """Pages a sequence of so many tokens takes."""
        return -(-num_tokens // self.page_size)

    def context_bucket(self, num_tokens: int) -> int:
        """The smallest bucket that covers a context of so many tokens."""
        for bucket in self.context_buckets:
            if bucket >= num_tokens:
                return bucket
        raise UsageError(f"context of {num_tokens} tokens exceeds {self.context_buckets[-1]}")

    def padded_rows(self, num_rows: int, *, has_prompt_rows: bool) -> int:
        """Rows a decode step is padded to: multiples of the token bucket, or powers of two."""
        if has_prompt_rows:
            return -(-num_rows // self.token_bucket) * self.token_bucket
        return 1 << (num_rows - 1).bit_length()

    def padded_sequences(self, num_sequences: int) -> int:
        """Sequences a compiled step is padded to: powers of two, `max_num_seqs` at most."""
        return min(1 << (num_sequences - 1).bit_length(), self.max_num_seqs)

    def prefill_rows(self, num_rows: int) -> int:
        """Rows a prefill step is padded to."""
        return next(bucket for bucket in self.prefill_buckets if bucket >= num_rows)


def resolve_limits(settings: EngineSettings, config: ModelConfig) -> EngineLimits:
    """Fill the defaults and check the numbers against one another.

    Raises:
        UsageError: names the field, its value and its limit.
    """
    _refuse_negative(settings)
    tiny = config.hidden_size < _TINY_HIDDEN
    page_size = settings.page_size or (8 if tiny else 128)
    for ratio in set(config.ratios) - {0}:
        if page_size % ratio:
            raise UsageError(f"page_size={page_size}: a multiple of compress ratio {ratio} needed")
    buckets = _context_buckets(settings, (64, 128) if tiny else (2048, 4096, 8448))
    max_model_len = buckets[-1]
    if max_model_len > config.max_positions:
        raise UsageError(
            f"max_model_len={max_model_len}: the model has {config.max_positions} positions"
        )
    token_bucket = settings.token_bucket or (16 if tiny else 128)
    has_prefill_path = settings.prefill == "attention"
    batched = token_bucket * _PREFILL_TOKEN_BUCKETS if has_prefill_path else token_bucket
    batched = settings.max_num_batched_tokens or batched
    pages_per_seq = -(-max_model_len // page_size)
    return EngineLimits(
        max_model_len=max_model_len,
        max_num_batched_tokens=batched,
        token_bucket=token_bucket,
        context_buckets=buckets,
        page_size=page_size,
        num_pages=(settings.num_kv_blocks or pages_per_seq * _DEFAULT_NUM_SEQS) + 1,
        max_num_seqs=_DEFAULT_NUM_SEQS,
        backtrack=_backtrack(settings, config),
        prefill_buckets=_prefill_buckets(token_bucket, batched) if has_prefill_path else (),
    )


def _refuse_negative(settings: EngineSettings) -> None:
    for name in _ZERO_IS_DEFAULT:
        value = getattr(settings, name)
        if value < 0:
            raise UsageError(f"{name}={value}: it is positive, or 0 for the default")


def _prefill_buckets(token_bucket: int, num_batched_tokens: int) -> tuple[int, ...]:
    """The token bucket doubled until it reaches a whole step: 128, 256, 512."""
    buckets = []
    while token_bucket < num_batched_tokens:
        buckets.append(token_bucket)
        token_bucket *= 2
    return (*buckets, num_batched_tokens)


def _backtrack(settings: EngineSettings, config: ModelConfig) -> int:
    if not settings.speculative:
        return 0
    if config.draft is None:
        raise UsageError("speculative='dspark': this checkpoint has no draft stages (mtp.*)")
    # A verified block writes one row for its first token and one for each draft.
    return config.draft.block_size + 1


def _context_buckets(settings: EngineSettings, defaults: tuple[int, ...]) -> tuple[int, ...]:
    given = settings.context_buckets or defaults
    if min(given) < 1 or list(given) != sorted(set(given)):
        raise UsageError(f"context_buckets={given}: ascending positive lengths are needed")
    limit = settings.max_model_len
    if limit == 0:
        return given
    if settings.context_buckets and given[-1] > limit:
        raise UsageError(f"context_buckets={given}: none may exceed max_model_len={limit}")
    return (*(bucket for bucket in given if bucket < limit), limit)
