"""Where the files of a trained checkpoint lie in this package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.core.errors import InputError
from tiny_checkpoints.variants import Variant

__all__ = ["stored_directory"]


def stored_directory(variant: Variant) -> Path:
    """The directory with the committed files of a variant whose weights cannot be drawn.

    Raises:
        InputError: the installation lacks them.
    """
    place = Path(str(resources.files("tiny_checkpoints"))) / "trained" / variant.name
    if not (place / "config.json").is_file():
        raise InputError(
            place, variant.name, "absent", "install the package again: its weights are data files"
        )
    return place
