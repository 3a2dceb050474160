"""`nl.tile_size`: what the hardware's tiles hold."""

from __future__ import annotations

from kernels.interpreter import limits

__all__ = ["tile_size"]


class _TileSize:
    """Sizes of trn2."""

    pmax = limits.MAX_PARTITIONS
    psum_fmax = limits.PSUM_BANK_BYTES // 4
    psum_bank_fmax = limits.PSUM_BANK_BYTES // 4
    psum_bank_fmax_bytes = limits.PSUM_BANK_BYTES
    gemm_stationary_fmax = limits.MATMUL_MAX_STATIONARY
    gemm_moving_fmax = limits.MATMUL_MAX_MOVING
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    def psum_num_banks(self) -> int:
        """PSUM banks of a partition."""
        return limits.PSUM_BANKS

    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF."""
        return limits.SBUF_BYTES

    def sbuf_fmax(self) -> int:
        """fp32 elements a kernel may use in a partition."""
        return limits.SBUF_USABLE_BYTES // 4

    def sbuf_fmax_bytes(self) -> int:
        """Bytes a kernel may use in a partition."""
        return limits.SBUF_USABLE_BYTES

    def total_available_sbuf_size(self) -> int:
        """Bytes a kernel may use in all partitions."""
        return limits.SBUF_USABLE_BYTES * limits.MAX_PARTITIONS


tile_size = _TileSize()
