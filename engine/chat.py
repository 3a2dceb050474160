"""A conversation as one prompt text (model.md §1.4): the model has no template file."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import UsageError

__all__ = ["BOS", "EOS", "Turn", "encode_chat"]

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
_USER = "<｜User｜>"
_ASSISTANT = "<｜Assistant｜>"
_SYSTEM = "<｜System｜>"
_EFFORT = {"low": 50, "high": 75, "max": 100}

# (role, text); role is system, user or assistant.
Turn = tuple[str, str]


def encode_chat(turns: Sequence[Turn], *, thinking: bool = False, effort: str = "high") -> str:
    """The prompt text, ending where the assistant is to speak.

    Reasoning of earlier turns is dropped; an assistant turn that comes last is continued.

    Args:
        effort: low, high or max; only said in thinking mode.

    Raises:
        UsageError: unknown role or effort.
    """
    if effort not in _EFFORT:
        raise UsageError(f"effort {effort!r}: choose one of {', '.join(_EFFORT)}")
    leading_system = bool(turns) and turns[0][0] == "system"
    parts = [BOS, _SYSTEM if thinking or leading_system else ""]
    if thinking:
        parts.append(
            f"Reasoning Effort: {_EFFORT[effort]} (range 1-100, the higher the value, "
            "the more thorough the reasoning)\n\n"
        )
    opening = _ASSISTANT + ("<think>" if thinking else "</think>")
    for number, (role, text) in enumerate(turns):
        is_last = number == len(turns) - 1
        if role == "system":
            parts.append(text if number == 0 else _SYSTEM + text)
            speaks = number > 0
        elif role == "user":
            parts.append(_USER + text)
            speaks = True
        elif role == "assistant":
            parts.append(_finished_turn(text) + ("" if is_last else EOS))
            speaks = False
        else:
            raise UsageError(f"turn {number}: role {role!r} is system, user or assistant")
        if speaks and _assistant_follows(turns, number):
            parts.append(opening if is_last else _ASSISTANT + "</think>")
    return "".join(parts)


def _assistant_follows(turns: Sequence[Turn], number: int) -> bool:
    return number == len(turns) - 1 or turns[number + 1][0] == "assistant"


def _finished_turn(text: str) -> str:
    """What was said, without the reasoning before it."""
    return text.rpartition("</think>")[2]
