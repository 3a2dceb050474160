"""`python -m scripts.train_tiny OUT`: train, write the checkpoint to OUT/tiny-T, say how good."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from scripts.train_tiny.export import spread_scales, write_trained
from scripts.train_tiny.loop import Trainer
from scripts.train_tiny.model import TrainableModel
from tiny_checkpoints.config_files import model_config
from tiny_checkpoints.tokenizer import build_tokenizer, token_map
from tiny_checkpoints.variants import VARIANTS
from tiny_checkpoints.writer import geometry_of

__all__ = ["main", "new_model"]

_VARIANT = VARIANTS["tiny-T"]


def new_model(seed: int) -> TrainableModel:
    """The model of tiny-T before its first step."""
    tokenizer = build_tokenizer(_VARIANT.vocab_size)
    constants = model_config(_VARIANT, tokenizer)["text_config"]
    return TrainableModel(
        geometry_of(_VARIANT), torch.tensor(token_map(tokenizer)), constants, seed
    )


def main() -> None:
    """Train on one core; a second run goes on where the first one stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(new_model(chosen.seed), chosen.directory, chosen.seed)
    trainer.resume()
    done = trainer.run(time.monotonic() + 60 * chosen.minutes)
    place = chosen.directory / _VARIANT.name
    place.mkdir(exist_ok=True)
    spread_scales(trainer.model)
    write_trained(trainer.model, _VARIANT, place)
    print(f"{'done' if done else 'stopped'} at step {trainer.step}: {place}")


if __name__ == "__main__":
    main()
