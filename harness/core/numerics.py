"""How sums are made and where values are rounded (model.md §9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.core.errors import UsageError

__all__ = ["EXACT", "FAST", "GOLDEN", "MODES", "QUANTISED", "TRN2", "Numerics", "numerics_named"]


@dataclass(frozen=True, slots=True)
class Numerics:
    """One numerics mode. dtypes are torch's names as text, so that this module needs no torch.

    Attributes:
        name: what users type.
        activation: dtype every op's activation output is rounded to.
            Rounded once, half to even: float64 reaches bfloat16 directly, not through float32.
        accumulate: dtype of sums, softmax and statistics, and of what stays unrounded
            (router scores, index scores, mHC coefficients, logits).
        quantise: whether activation and KV quantisers act. False: values pass unrounded.
        fp8_max: 448 on the OCP e4m3fn grid, 240 on Trainium's e4m3 grid.
    """

    name: str
    activation: Literal["float64", "float32", "bfloat16"]
    accumulate: Literal["float64", "float32"]
    quantise: bool
    fp8_max: Literal[448, 240] = 448


EXACT = Numerics("exact", "float64", "float64", quantise=False)
QUANTISED = Numerics("quantised", "bfloat16", "float64", quantise=True)
TRN2 = Numerics("trn2", "bfloat16", "float64", quantise=True, fp8_max=240)
FAST = Numerics("fast", "bfloat16", "float32", quantise=True)
# Not a mode of the engine: how an op's golden is evaluated, on the inputs a kernel was given.
GOLDEN = Numerics("golden", "float64", "float64", quantise=True)

MODES = {mode.name: mode for mode in (EXACT, QUANTISED, TRN2, FAST)}


def numerics_named(name: str) -> Numerics:
    """Look a mode up by the name users type.

    Raises:
        UsageError: unknown name; the message lists the known ones.
    """
    if name not in MODES:
        raise UsageError(f"numerics {name!r} is not known: choose one of {', '.join(MODES)}")
    return MODES[name]
