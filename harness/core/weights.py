"""A quantised weight as the checkpoint stores it, with room for a prepared form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

__all__ = ["QuantisedWeight"]

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class QuantisedWeight:
    """Codes and power-of-two scales, exactly as stored (model.md §4.3).

    Attributes:
        codes: uint8 tensor. "fp8": [..., N, K] e4m3fn bytes. "fp4": [..., N, K/2], the even
            K index in the low nibble.
        scale: uint8 tensor of ue8m0 bytes. "fp8_block": [..., ceil(N/32), ceil(K/32)];
            "fp8_row" and "fp4": [..., N, K/32].
        layout: "fp8_block" (32x32 tiles, linears), "fp8_row" (per row and 32 channels, the
            Engram table), "fp4" (per row and 32 along K, experts).

    An op table may keep what it derives from the codes (dequantised copy, transposed bytes on
    another grid) with `prepared`; the weight owns it, so no cache outlives its weight.
    """

    codes: Any
    scale: Any
    layout: Literal["fp8_block", "fp8_row", "fp4"]
    _prepared: dict[str, Any] = field(default_factory=dict, repr=False)

    def prepared(self, key: str, build: Callable[[QuantisedWeight], T]) -> T:
        """The derived form named `key`, built on first use."""
        if key not in self._prepared:
            self._prepared[key] = build(self)
        return cast(T, self._prepared[key])

    @property
    def out_features(self) -> int:
        """N."""
        return int(self.codes.shape[-2])

    @property
    def in_features(self) -> int:
        """K, in values (an fp4 byte holds two)."""
        per_byte = 2 if self.layout == "fp4" else 1
        return int(self.codes.shape[-1]) * per_byte
