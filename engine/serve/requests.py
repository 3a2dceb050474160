"""What clients may ask for: bodies of /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.serve.errors import bad_request
from engine.serve.fields import Fields

__all__ = [
    "ChatBody",
    "CompletionBody",
    "Message",
    "Sampling",
    "parse_chat",
    "parse_completion",
]

_DEFAULT_MAX_TOKENS = 16
_MAX_LOGPROBS = 20
_MAX_STOPS = 16
_MAX_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are picked and when a sequence ends.

    Attributes:
        max_tokens: 0 takes what the context leaves.
        temperature: 0 is greedy, lowest id on ties.
        top_k: 0 keeps all.
        seed: None draws differently for every request.
        num_logprobs: alternatives reported per token; None reports nothing.
        stop: texts that end the output and are not part of it.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    num_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class _Stream:
    stream: bool
    include_usage: bool
    usage_in_every_chunk: bool


@dataclass(frozen=True, slots=True)
class CompletionBody:
    """A completion call; each prompt is a text or token ids."""

    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    sampling: Sampling
    echo: bool
    stream: _Stream


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; content parts already joined."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A chat call.

    Attributes:
        thinking: whether the assistant's turn starts in its reasoning.
        effort: of the reasoning: low, high or max.
    """

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    stream: _Stream
    thinking: bool
    effort: str


def parse_completion(fields: Fields) -> CompletionBody:
    """Check a completion body.

    Raises:
        ApiError: 400 naming the field.
    """
    fields.neutral("n", 1)
    fields.neutral("best_of", 1)
    fields.neutral("suffix", "")
    num_logprobs = fields.raw("logprobs")
    if num_logprobs is not None:
        num_logprobs = fields.integer("logprobs", 0, low=0)
        _check_logprobs("logprobs", num_logprobs)
    body = CompletionBody(
        model=fields.text("model"),
        prompts=_prompts(fields.raw("prompt")),
        sampling=_sampling(fields, _max_tokens(fields, _DEFAULT_MAX_TOKENS), num_logprobs),
        echo=fields.boolean("echo"),
        stream=_stream(fields),
    )
    if body.echo and body.stream.stream:
        raise bad_request("echo cannot be streamed: leave stream out", "echo")
    return body


def parse_chat(fields: Fields) -> ChatBody:
    """Check a chat body.

    Raises:
        ApiError: 400 naming the field.
    """
    fields.neutral("n", 1)
    fields.neutral("tools", [])
    fields.neutral("response_format", {"type": "text"})
    num_logprobs = None
    if fields.boolean("logprobs"):
        num_logprobs = fields.integer("top_logprobs", 0, low=0)
        _check_logprobs("top_logprobs", num_logprobs)
    template = fields.table("chat_template_kwargs")
    effort = template.text("reasoning_effort") or fields.text("reasoning_effort", "high")
    if effort not in ("low", "high", "max"):
        raise bad_request(f"reasoning_effort {effort!r}: low, high or max", "reasoning_effort")
    return ChatBody(
        model=fields.text("model"),
        messages=_messages(fields.raw("messages")),
        sampling=_sampling(fields, _max_tokens(fields, 0), num_logprobs),
        stream=_stream(fields),
        thinking=template.boolean("thinking"),
        effort=effort,
    )


def _max_tokens(fields: Fields, default: int) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if fields.raw(name) is not None:
            return fields.integer(name, default, low=1)
    return default


def _sampling(fields: Fields, max_tokens: int, num_logprobs: int | None) -> Sampling:
    # 1.0 and 0.0 change nothing; any other value would, and is not carried out.
    fields.neutral("repetition_penalty", 1)
    fields.neutral("presence_penalty", 0)
    fields.neutral("frequency_penalty", 0)
    fields.neutral("logit_bias", {})
    stop = fields.texts("stop")
    if len(stop) > _MAX_STOPS or any(not text for text in stop):
        raise bad_request(f"stop takes at most {_MAX_STOPS} texts, none of them empty", "stop")
    seed = None if fields.raw("seed") is None else fields.integer("seed", 0)
    top_k = fields.integer("top_k", 0, low=-1)
    return Sampling(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 0.0, 0.0, 100.0),
        top_p=fields.number("top_p", 1.0, 1e-9, 1.0),
        top_k=max(0, top_k),
        seed=seed,
        min_tokens=fields.integer("min_tokens", 0, low=0),
        ignore_eos=fields.boolean("ignore_eos"),
        num_logprobs=num_logprobs,
        stop=stop,
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
    )


def _check_logprobs(name: str, count: int) -> None:
    if count > _MAX_LOGPROBS:
        raise bad_request(f"{name} must be at most {_MAX_LOGPROBS}, it is {count}", name)


def _stream(fields: Fields) -> _Stream:
    options = fields.table("stream_options")
    stream = fields.boolean("stream")
    return _Stream(
        stream=stream,
        include_usage=stream and options.boolean("include_usage"),
        usage_in_every_chunk=stream and options.boolean("continuous_usage_stats"),
    )


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """One text, one list of ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise bad_request(
            "prompt must be a text, a list of token ids, or a list of these", "prompt"
        )
    if len(value) > _MAX_PROMPTS and not isinstance(value[0], int):
        raise bad_request(f"prompt holds {len(value)} prompts; at most {_MAX_PROMPTS}", "prompt")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) for item in value):
        return tuple(_ids(item) for item in value)
    return (_ids(value),)


def _ids(value: list[Any]) -> tuple[int, ...]:
    for position, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise bad_request(
                f"prompt holds {item!r} at position {position}: no token id", "prompt"
            )
    return tuple(value)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise bad_request("messages must be a list of at least one message", "messages")
    messages = []
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise bad_request(f"messages[{number}] must be an object", "messages")
        role = item.get("role")
        if role == "developer":
            role = "system"
        if role not in ("system", "user", "assistant"):
            raise bad_request(
                f"messages[{number}].role is {role!r}: system, user or assistant", "messages"
            )
        messages.append(Message(role, _content(item.get("content"), number)))
    return tuple(messages)


def _content(value: Any, number: int) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in value
    ):
        return "".join(part["text"] for part in value)
    raise bad_request(
        f"messages[{number}].content must be a text or a list of text parts", "messages"
    )
