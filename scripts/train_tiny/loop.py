"""The training loop, resumable at its last saved step."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

from scripts.train_tiny.batches import Batch, draw_batch
from scripts.train_tiny.model import Rounding, StoredRounding, TrainableModel
from scripts.train_tiny.muon import Muon
from scripts.train_tiny.schedule import SCHEDULE, begins_phase, phase_of

__all__ = ["Trainer"]

_BATCH = 16
_ADAM_LR, _MUON_LR = 4e-3, 0.03
_INDEX_WEIGHT, _BALANCE_WEIGHT = 0.3, 0.01
_COOLING = 0.2
_TELL_EVERY, _SAVE_EVERY = 50, 100
# Tables, ends and small projections; Muon has the other matrices.
_ADAM_MATRICES = ("embed.weight", "head.weight", "_fn", "engram.embed", "gate.weight", "_weight")


@dataclass
class Trainer:
    """Trains a model by the schedule.

    Attributes:
        directory: where `state.pt` is kept.
    """

    model: TrainableModel
    directory: Path
    seed: int
    step: int = 0
    _right: Counter[str] = field(default_factory=Counter)
    _asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        named = [(name, one) for name, one in self.model.weights.named() if one.requires_grad]
        with_muon = [
            one for name, one in named if one.dim() >= 2 and not name.endswith(_ADAM_MATRICES)
        ]
        chosen = {id(one) for one in with_muon}
        rest = [one for _, one in named if id(one) not in chosen]
        self.muon = Muon(with_muon, _MUON_LR)
        self.adam = torch.optim.Adam(rest, _ADAM_LR, betas=(0.9, 0.98), foreach=True)

    def run(self, until_s: float) -> bool:
        """Train until the schedule's end (True) or the monotonic clock's time `until_s`."""
        last = sum(phase.steps for phase in SCHEDULE)
        begin = time.monotonic()
        while self.step < last:
            if time.monotonic() > until_s:
                self.save()
                return False
            loss = self._step()
            self.step += 1
            if self.step % _TELL_EVERY == 0:
                shares = (f"{name} {self._right[name] / n:.2f}" for name, n in self._counts())
                took = time.monotonic() - begin
                print(f"{self.step} {took:.0f}s loss {loss} {' '.join(shares)}", flush=True)
                self._right.clear()
                self._asked.clear()
            if self.step % _SAVE_EVERY == 0:
                self.save()
        self.save()
        return True

    def save(self) -> None:
        """Write the state, whole or not at all."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "muon": self.muon.momenta,
            "adam": self.adam.state_dict(),
        }
        torch.save(state, self.directory / "state.new")
        (self.directory / "state.new").replace(self.directory / "state.pt")

    def resume(self) -> None:
        """Go on from the saved state if there is one."""
        file = self.directory / "state.pt"
        if file.exists():
            state = torch.load(file, weights_only=True)
            self.step = state["step"]
            self.model.load_state_dict(state["model"])
            for ours, saved in zip(self.muon.momenta, state["muon"], strict=True):
                ours.copy_(saved)
            self.adam.load_state_dict(state["adam"])

    def _step(self) -> str:
        phase, factor = phase_of(self.step)
        batch = draw_batch(phase, _BATCH, self.seed, self.step)
        model = self.model
        if begins_phase(self.step):
            self._cool(phase.cooled_layers)
        model.sinkhorn_iterations = phase.sinkhorn_iterations
        model.weights.rounds_weights = phase.rounds_weights
        model.weights.forget()
        model.rounding = StoredRounding() if batch.rounds_activations else Rounding()
        self.adam.param_groups[0]["lr"] = _ADAM_LR * factor
        self.muon.lr = _MUON_LR * factor
        output = model(batch.ids[:, :-1], batch.pathways)
        each = functional.cross_entropy(
            output.logits.transpose(1, 2), batch.ids[:, 1:], reduction="none"
        )
        answers = (each * batch.weights).sum() / batch.weights.sum()
        total = answers + _INDEX_WEIGHT * output.index_loss + _BALANCE_WEIGHT * output.balance_loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.adam.step()
        self.muon.step()
        self._raise_sinks(phase.sink_floor)
        model.zero_grad(set_to_none=True)
        self._count(batch, output.logits.detach())
        parts = (answers, output.index_loss, output.balance_loss)
        return " ".join(f"{part.item():.3f}" for part in parts)

    @torch.no_grad()
    def _cool(self, layers: tuple[int, ...]) -> None:
        for layer in layers:
            self.model.weights[f"layers.{layer}.attn.wq_b"].mul_(_COOLING)

    @torch.no_grad()
    def _raise_sinks(self, floor: float) -> None:
        for name, parameter in self.model.weights.named():
            if name.endswith("attn_sink"):
                parameter.clamp_(min=floor)

    def _count(self, batch: Batch, logits: torch.Tensor) -> None:
        right = (logits.argmax(-1) == batch.ids[:, 1:]) & batch.is_answer
        for row, task in enumerate(batch.tasks):
            self._asked[task.family] += int(batch.is_answer[row].sum())
            self._right[task.family] += int(right[row].sum())

    def _counts(self) -> list[tuple[str, int]]:
        return sorted((name, n) for name, n in self._asked.items() if n)
