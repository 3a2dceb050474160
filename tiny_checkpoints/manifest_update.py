"""Writes MANIFEST.json anew: `python -m tiny_checkpoints.manifest_update`.

For a deliberate change of a variant only; a difference that nobody meant is a bug to be found.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tiny_checkpoints.config_files import write_json
from tiny_checkpoints.manifest import MANIFEST_FILE, measured_hashes
from tiny_checkpoints.stored import stored_directory
from tiny_checkpoints.variants import VARIANTS, Variant
from tiny_checkpoints.writer import write_checkpoint

__all__ = ["main"]


def main() -> None:
    """Write every variant that is drawn to a temporary directory; record all hashes."""
    content: dict[str, dict[str, str]] = {}
    for name, variant in VARIANTS.items():
        content[name] = _hashes(variant)
        print(f"{name}: {len(content[name])} files")
    write_json(Path(__file__).with_name(MANIFEST_FILE), content)


def _hashes(variant: Variant) -> dict[str, str]:
    if variant.is_trained:
        return measured_hashes(stored_directory(variant))
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(variant, Path(directory))
        return measured_hashes(Path(directory))


if __name__ == "__main__":
    main()
