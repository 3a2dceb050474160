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
    """

    stack: str
    input_len: int
    ttft_ms: float
    tpot_ms: tuple[float, float] | None

    @property
    def tpot_text(self) -> str:
        """ "447", "117–127" or a dash, in ms."""
        if self.tpot_ms is None:
            return "–"
        low, high = self.tpot_ms
        return f"{low:g}" if low == high else f"{low:g}–{high:g}"


PUBLISHED = (
    PublishedFigure("DeepInfer", 512, 5_000.0, (447.0, 447.0)),
    PublishedFigure("DeepInfer", 1024, 9_000.0, (447.0, 447.0)),
    PublishedFigure("DeepInfer", 2048, 17_100.0, (456.0, 456.0)),
    PublishedFigure("DeepInfer", 8192, 66_500.0, (471.0, 471.0)),
    PublishedFigure("vllm-neuron", 512, 830.0, (117.0, 127.0)),
    PublishedFigure("vllm-neuron", 1024, 1_370.0, None),
    PublishedFigure("vllm-neuron", 2048, 2_540.0, None),
    PublishedFigure("vllm-neuron", 8192, 12_200.0, None),
)
