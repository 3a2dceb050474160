"""What a message adds when a name is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["near_names"]

# A menu of options is worth listing whole, the tensors of a checkpoint are not.
_MAX_LISTED = 64
_NUM_SHOWN = 5


def near_names(name: str, known: Iterable[str]) -> str:
    """ "; did you mean a, b?" or "; known: a, b, c", cut where there are very many."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"; did you mean {', '.join(close)}?"
    if len(names) <= _MAX_LISTED:
        return f"; known: {', '.join(names)}"
    return f"; known: {', '.join(names[:_NUM_SHOWN])} and {len(names) - _NUM_SHOWN} more"
