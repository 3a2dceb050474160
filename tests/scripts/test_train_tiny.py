"""The model that is trained is the oracle's model; what is written is what was trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from references.oracle.checkpoint import Checkpoint
from references.oracle.model import OracleModel
from scripts.train_tiny.__main__ import new_model
from scripts.train_tiny.attention import Pathways
from scripts.train_tiny.batches import draw_batch
from scripts.train_tiny.export import spread_scales, write_trained
from scripts.train_tiny.loop import Trainer
from scripts.train_tiny.model import TrainableModel
from scripts.train_tiny.rounding import FORMS
from scripts.train_tiny.schedule import SCHEDULE, phase_of
from tiny_checkpoints.variants import VARIANTS

_LENGTH = 64  # beyond the window of 16, the 8 selected entries and the 4 candidate blocks


def _model(seed: int) -> TrainableModel:
    """A model with every parameter off its initial symmetry, fp64, weights as stored."""
    model = new_model(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.randn(one.shape, generator=generator) * 0.05)
    model.weights.rounds_weights = True
    return model


@pytest.mark.parametrize("seed", [1, 2])
def test_trained_model_is_the_oracle_model_on_the_same_weights(tmp_path: Path, seed: int) -> None:
    model = _model(seed)
    write_trained(model, VARIANTS["tiny-T"], tmp_path)
    ids = torch.randint(0, 320, (1, _LENGTH), generator=torch.Generator().manual_seed(seed + 9))
    with torch.no_grad():
        ours = model.double()(ids, Pathways()).logits[0].numpy()
    oracle = OracleModel(tmp_path, "exact")
    theirs = oracle.forward(ids[0].tolist(), oracle.new_state()).logits
    assert np.abs(ours - theirs).max() < 1e-11
    assert np.abs(theirs).max() > 1


def test_a_sequence_does_not_see_its_neighbours_in_the_batch() -> None:
    model = _model(3).double()
    ids = torch.randint(0, 320, (3, _LENGTH), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        together = model(ids, Pathways()).logits
        alone = model(ids[1:2], Pathways()).logits
    assert torch.allclose(together[1:2], alone, atol=1e-11)


def test_every_stored_form_is_among_the_rounded_ones() -> None:
    assert set(new_model(1).weights.forms.values()) <= set(FORMS)


def test_a_closed_pathway_hides_its_compressed_entries() -> None:
    model = _model(4).double()
    ids = torch.randint(0, 320, (1, _LENGTH), generator=torch.Generator().manual_seed(6))
    closed = Pathways({1: torch.tensor([False]), 2: torch.tensor([False])})
    with torch.no_grad():
        short = model(ids[:, 48:], closed).logits[0, -1]
        whole = model(ids, closed).logits[0, -1]
        opened = model(ids, Pathways()).logits[0, -1]
    assert not torch.allclose(whole, opened, atol=1e-3)
    assert whole.shape == short.shape


def test_spreading_the_scales_changes_no_value(tmp_path: Path) -> None:
    model = _model(5).double()
    ids = torch.randint(0, 320, (1, _LENGTH), generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        before = model(ids, Pathways()).logits
        spread_scales(model)
        after = model(ids, Pathways()).logits
    assert torch.allclose(before, after, rtol=0, atol=1e-11)
    write_trained(model, VARIANTS["tiny-T"], tmp_path)
    weights = Checkpoint(tmp_path)
    for leaf in ("w1", "w3"):
        scale = weights.raw(f"layers.2.ffn.experts.3.{leaf}.scale").astype(int)
        assert ((scale[:, 0] - scale[:, 1]) >= 1).mean() > 0.9


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    phase, _ = phase_of(0)
    first, again = draw_batch(phase, 4, 7, 12), draw_batch(phase, 4, 7, 12)
    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, draw_batch(phase, 4, 7, 13).ids)


def test_the_schedule_ends_with_the_rounding_of_the_files() -> None:
    last = SCHEDULE[-1]
    assert last.rounds_weights
    assert last.sinkhorn_iterations >= 10
    assert last.select_share > 0
    with pytest.raises(ValueError, match="the schedule has"):
        phase_of(sum(phase.steps for phase in SCHEDULE))


def test_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def trained(directory: Path, stops: bool) -> TrainableModel:
        directory.mkdir()
        trainer = Trainer(new_model(1), directory, 1)
        for step in range(4):
            if stops and step == 2:
                trainer.save()
                trainer = Trainer(new_model(2), directory, 1)
                trainer.resume()
            trainer._step()
            trainer.step += 1
        return trainer.model

    whole, resumed = trained(tmp_path / "a", False), trained(tmp_path / "b", True)
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
