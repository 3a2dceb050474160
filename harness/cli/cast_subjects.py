"""Who casts: the interpreter, the references, the kernels and the checkpoint generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harness.core.numerics import FAST, Numerics
from harness.run.casts import FORMATS, CastSubject, bf16_numbers, power_ceiling_bytes

__all__ = ["cast_subjects"]

Reals = npt.NDArray[np.float64]
Run = Callable[[Reals], Reals]

_INTERPRETER = {"e4m3fn": "float8_e4m3fn", "e4m3-240": "float8_e4m3", "e5m2": "float8_e5m2"}
_KERNEL_NUMERICS = Numerics(FAST.name, FAST.activation, FAST.accumulate, True, fp8_max=240)
_BYTES = np.arange(256, dtype=np.float64)


def cast_subjects() -> Iterator[CastSubject]:
    """Every implementation of every format, both ways."""
    yield from _interpreter()
    yield from _references()
    yield from _generator()
    yield from _kernels()


def _encoder(name: str, who: str, run: Run, limit: float | None, largest: float) -> CastSubject:
    """Over all bf16 numbers up to `largest`; answers are codes, NaN codes as NaN."""
    numbers = bf16_numbers()
    with np.errstate(invalid="ignore"):
        numbers = numbers[(np.abs(numbers) <= largest) | (np.isnan(numbers) & (largest == np.inf))]
    codes = FORMATS[name].encoded(numbers, limit)
    return CastSubject(name, "encode", who, numbers, np.where(codes < 0, np.nan, codes), run)


def _decoder(name: str, who: str, run: Run, codes: Reals = _BYTES) -> CastSubject:
    wanted = FORMATS[name].decoded(codes.astype(np.uint8))
    return CastSubject(name, "decode", who, codes, wanted, run)


def _codes(name: str, codes: npt.NDArray[np.uint8]) -> Reals:
    """As numbers, NaN where the code means NaN."""
    return np.where(np.isnan(FORMATS[name].decoded(codes)), np.nan, codes.astype(np.float64))


def _interpreter() -> Iterator[CastSubject]:
    from kernels.interpreter.casts import decode_float32, store_float32
    from kernels.interpreter.dtypes import DTYPES

    def encode(name: str) -> Run:
        def run(numbers: Reals) -> Reals:
            stored = np.zeros(numbers.shape, dtype=DTYPES[_INTERPRETER[name]].carrier)
            store_float32(stored, numbers.astype(np.float32))
            return _codes(name, stored.view(np.uint8))

        return run

    def decode(dtype: str) -> Run:
        def run(codes: Reals) -> Reals:
            stored = codes.astype(np.uint8).view(DTYPES[dtype].carrier)
            out = np.empty(codes.shape, dtype=np.float32)
            decode_float32(stored, out)
            return out.astype(np.float64)

        return run

    for name, dtype in _INTERPRETER.items():
        yield _encoder(name, "interpreter", encode(name), None, np.inf)
        yield _decoder(name, "interpreter", decode(dtype))
    yield _ue8m0_decoder("interpreter", decode("float8_e8m0fnu"))


def _references() -> Iterator[CastSubject]:
    from references import number_formats as formats

    def encode_e4m3(name: str, fp8_max: int) -> Run:
        return lambda numbers: _codes(name, formats.encode_e4m3(_fp32(numbers), fp8_max).numpy())

    def encode_e2m1(numbers: Reals) -> Reals:
        packed = formats.encode_e2m1(_fp32(numbers).view(1, -1)).numpy()[0]
        return np.stack((packed & 15, packed >> 4), axis=-1).reshape(-1).astype(np.float64)

    for name, fp8_max in (("e4m3fn", 448), ("e4m3-240", 240)):
        yield _encoder(name, "references", encode_e4m3(name, fp8_max), float(fp8_max), np.inf)
    yield _encoder("e2m1", "references", encode_e2m1, 6.0, 3.4e38)
    yield _decoder("e4m3fn", "references", _decode(formats.decode_e4m3))
    yield _decoder("e2m1", "references", _decode_pairs(formats.decode_e2m1), np.arange(16.0))
    yield _ue8m0_encoder(
        "references",
        lambda t: formats.encode_ue8m0(formats.power_of_two_ceiling(_fp32(t))).double().numpy(),
    )
    yield _ue8m0_decoder("references", _decode(formats.decode_ue8m0))


def _generator() -> Iterator[CastSubject]:
    from tiny_checkpoints import encode

    yield _encoder("e4m3fn", "tiny_checkpoints", _as_reals(encode.e4m3_bytes), 448.0, 3.4e38)
    yield _encoder("e2m1", "tiny_checkpoints", _as_reals(encode.e2m1_codes), 6.0, 3.4e38)
    yield _ue8m0_encoder(
        "tiny_checkpoints",
        lambda t: encode.ue8m0_bytes(encode.pow2_ceil_exponent(t)).astype(np.float64),
    )


def _kernels() -> Iterator[CastSubject]:
    """The quantisers, each block's scale pinned to 1 by its first channel."""
    from kernels.quantise_fp4_nki import dequantise_fp4, quantise_fp4
    from kernels.quantise_fp8_nki import dequantise_fp8, quantise_fp8

    def encode_e4m3(numbers: Reals) -> Reals:
        codes, _ = quantise_fp8(_pinned(numbers, 240.0), numerics=_KERNEL_NUMERICS)
        return _codes("e4m3-240", _unpinned(codes, numbers.size))

    def encode_e2m1(numbers: Reals) -> Reals:
        packed, _ = quantise_fp4(_pinned(numbers, 6.0), 32, numerics=_KERNEL_NUMERICS)
        nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        return _unpinned(nibbles, numbers.size).astype(np.float64)

    def decode_e4m3(codes: Reals) -> Reals:
        bytes_ = torch.from_numpy(codes.astype(np.uint8)).view(-1, 32)
        scale = torch.full((bytes_.shape[0], 1), 127, dtype=torch.uint8)
        return dequantise_fp8(bytes_, scale, numerics=_KERNEL_NUMERICS).double().numpy().reshape(-1)

    def decode_e2m1(codes: Reals) -> Reals:
        nibbles = torch.from_numpy(np.tile(codes, 2).astype(np.uint8))
        packed = (nibbles[0::2] | (nibbles[1::2] << 4)).view(1, 16)
        one = torch.full((1, 1), 127, dtype=torch.uint8)
        values = dequantise_fp4(packed, one, 32, numerics=_KERNEL_NUMERICS)
        return values.double().numpy().reshape(-1)[: codes.size]

    def decode_ue8m0(codes: Reals) -> Reals:
        scale = torch.from_numpy(codes.astype(np.uint8)).view(-1, 1)
        ones = torch.full((scale.shape[0], 32), 0x38, dtype=torch.uint8)
        return dequantise_fp8(ones, scale, numerics=_KERNEL_NUMERICS)[:, 0].double().numpy()

    yield _encoder("e4m3-240", "kernels", encode_e4m3, None, 240.0)
    yield _encoder("e2m1", "kernels", encode_e2m1, None, 6.0)
    yield _decoder("e4m3-240", "kernels", decode_e4m3)
    yield _decoder("e2m1", "kernels", decode_e2m1, np.arange(16.0))
    yield _ue8m0_decoder("kernels", decode_ue8m0, _BYTES[1:255])


def _ue8m0_encoder(who: str, run: Run) -> CastSubject:
    """Scales are positive and normal, and at most 2^127."""
    numbers = bf16_numbers()
    with np.errstate(invalid="ignore"):
        numbers = numbers[(numbers >= 2.0**-126) & (numbers <= 2.0**127)]
    return CastSubject("ue8m0", "encode", who, numbers, power_ceiling_bytes(numbers), run)


def _ue8m0_decoder(who: str, run: Run, codes: Reals = _BYTES) -> CastSubject:
    wanted = np.ldexp(1.0, codes.astype(np.int64) - 127)
    wanted[codes == 255] = np.nan
    return CastSubject("ue8m0", "decode", who, codes, wanted, run)


def _fp32(numbers: Reals) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


def _decode(function: Callable[..., torch.Tensor]) -> Run:
    return lambda codes: function(torch.from_numpy(codes.astype(np.uint8)), torch.float64).numpy()


def _decode_pairs(function: Callable[..., torch.Tensor]) -> Run:
    def run(codes: Reals) -> Reals:
        nibbles = torch.from_numpy(codes.astype(np.uint8))
        return function(nibbles[0::2] | (nibbles[1::2] << 4), torch.float64).numpy()

    return run


def _as_reals(function: Callable[[Reals], Any]) -> Run:
    return lambda numbers: np.asarray(function(numbers), dtype=np.float64)


def _pinned(numbers: Reals, largest: float) -> torch.Tensor:
    """[ceil(n / 31), 32] bf16: `largest` first in every row, 0 where numbers end."""
    rows = -(-numbers.size // 31)
    padded = np.zeros(rows * 31)
    padded[: numbers.size] = numbers
    first = torch.full((rows, 1), largest)
    return torch.cat((first, _fp32(padded).view(rows, 31)), dim=1).to(torch.bfloat16)


def _unpinned(codes: torch.Tensor, count: int) -> npt.NDArray[np.uint8]:
    return codes[:, 1:].reshape(-1)[:count].to(torch.uint8).numpy()
