"""What a message adds when a name is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["near_names"]


def near_names(name: str, known: Iterable[str]) -> str:
    """ "; did you mean a, b?" or "; known: a, b, c"."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; known: {', '.join(names)}"
