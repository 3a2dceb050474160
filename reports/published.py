"""Figures that others published for this model, beside which a run's own are shown.

Source: port.md, "Published figures": batch 1, greedy, output 128, one trn2.48xlarge with 64
NeuronCores. None of them was measured by this project; a CPU run with the tiny checkpoint shares
neither hardware nor model size with them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PUBLISHED", "PUBLISHED_LABEL", "PUBLISHED_METHOD", "PUBLISHED_NOTES", "PublishedFigure"]

PUBLISHED_LABEL = "published, not measured here"
PUBLISHED_METHOD = "batch 1, greedy, output 128 tokens, one trn2.48xlarge (64 NeuronCores)"
PUBLISHED_NOTES = (
    "Published figures come from a trn2.48xlarge running the full DeepSeek-V4.1-Flash; they are "
    "not comparable with a run on other hardware or with a tiny checkpoint.",
    "vllm-neuron gives one TPOT for the whole column, 117–127 ms. It decodes speculatively with "
    "DSpark (acceptance length about 2.75); its plain decode step is about 340 ms, and that is "
    "what DeepInfer's 447 ms compares with.",
)


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One published cell of the TTFT/TPOT matrix.

    Attributes:
        tpot_ms: (low, high); equal where one number was given, None where none was.
        step_ms: of a plain decode step.
        acceptance: tokens a step gives; 1 where nothing is drafted.
    """

    stack: str
    input_len: int
    ttft_ms: float
    tpot_ms: tuple[float, float] | None
    step_ms: float | None = None
    acceptance: float | None = None

    @property
    def tpot_text(self) -> str:
        """ "447", "117–127" or a dash, in ms."""
        return _range(self.tpot_ms)

    @property
    def step_text(self) -> str | None:
        """ "about 340"; plain decoding gives its one number for both, a step and a token."""
        if self.step_ms is None:
            return None
        return f"{self.step_ms:g}" if self.acceptance == 1 else f"about {self.step_ms:g} plain"

    @property
    def acceptance_text(self) -> str | None:
        """ "1 (plain)" or "about 2.75"."""
        if self.acceptance is None:
            return None
        return "1 (plain)" if self.acceptance == 1 else f"about {self.acceptance:g}"

    @property
    def product_text(self) -> str:
        """TPOT times acceptance in ms."""
        if self.tpot_ms is None or self.acceptance is None:
            return "–"
        low, high = (round(tpot_ms * self.acceptance) for tpot_ms in self.tpot_ms)
        return _range((low, high))


def _range(values: tuple[float, float] | None) -> str:
    if values is None:
        return "–"
    low, high = values
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


PUBLISHED = (
    PublishedFigure("DeepInfer", 512, 5_000.0, (447.0, 447.0), 447.0, 1.0),
    PublishedFigure("DeepInfer", 1024, 9_000.0, (447.0, 447.0), 447.0, 1.0),
    PublishedFigure("DeepInfer", 2048, 17_100.0, (456.0, 456.0), 456.0, 1.0),
    PublishedFigure("DeepInfer", 8192, 66_500.0, (471.0, 471.0), 471.0, 1.0),
    PublishedFigure("vllm-neuron", 512, 830.0, (117.0, 127.0), 340.0, 2.75),
    PublishedFigure("vllm-neuron", 1024, 1_370.0, None),
    PublishedFigure("vllm-neuron", 2048, 2_540.0, None),
    PublishedFigure("vllm-neuron", 8192, 12_200.0, None),
)
