"""1 / sqrt(mean square + eps) from sums of squares: the statistic of every norm."""

from __future__ import annotations

from typing import Any

from kernels.launch import nisa, nl

__all__ = ["inverse_rms"]


def inverse_rms(sums: Any, channels: int, eps: float) -> Any:
    """fp32 of sums' shape, in SBUF: rsqrt(sums / channels + eps); sums in SBUF or PSUM.

    GpSimd's rsqrt, which is accurate; ScalarE's is piecewise polynomial.
    """
    rstd_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=rstd_sb,
        data=sums,
        op0=nl.multiply,
        operand0=1.0 / channels,
        op1=nl.add,
        operand1=eps,
    )
    nisa.tensor_scalar(
        dst=rstd_sb, data=rstd_sb, op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd
    )
    return rstd_sb
