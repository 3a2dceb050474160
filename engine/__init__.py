"""The inference engine of DeepSeek-V4.1-Flash on an interchangeable table of ops.

`from engine import LLM` is lazy: importing the package alone loads neither torch nor weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.llm import LLM

__all__ = ["LLM"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
