"""What the host settles before a prefill attention: how it is cut, and which key blocks it reads.

T tokens    H heads    N rows    B query blocks    V visits a query block    K keys of a visit

A query block is the tokens that share one pass over the keys, in tiles of at most 128 softmax rows
(token, head). A visit is one block of keys: P partitions with J neighbouring rows each, so that a
DMA descriptor moves J rows at once. Columns of a visit are ordered (j, p): key c = j * P + p is row
start + p * J + j. The last block of keys ends at N and overlaps its neighbour; what overlaps is
masked, so that every visit has the same shape and only its start is data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.tiling import PARTITIONS, PSUM_BANK_FP32, ceil_div

__all__ = ["PrefillCut", "Visits", "cut_of", "visits_of"]

_MAX_TILES = 8
_ROWS_A_PARTITION = PSUM_BANK_FP32 // PARTITIONS


@dataclass(frozen=True, slots=True)
class PrefillCut:
    """How one problem is cut.

    Attributes:
        tile_tokens: tokens of a tile of softmax rows.
        tiles: of a query block.
        partitions, rows_a_partition: P and J of a visit.
        shares_keys: the two cores share the keys of one tile instead of the tokens.
    """

    tile_tokens: int
    tiles: int
    partitions: int
    rows_a_partition: int
    shares_keys: bool

    @property
    def block_tokens(self) -> int:
        """Tokens of a query block, <= 128."""
        return self.tile_tokens * self.tiles

    @property
    def visit_keys(self) -> int:
        """K."""
        return self.partitions * self.rows_a_partition


@dataclass(frozen=True, slots=True)
class Visits:
    """Which blocks of keys each query block reads.

    Attributes:
        starts: int32 [1, B * V], first row of each visit.
        allowed: uint8 [B, V, block_tokens, K].
    """

    starts: torch.Tensor
    allowed: torch.Tensor


def cut_of(num_tokens: int, num_heads: int, num_rows: int, num_cores: int) -> PrefillCut:
    """The cut of a problem with at least one token and one row, H <= 128."""
    tile_tokens = min(num_tokens, PARTITIONS // num_heads)
    num_tiles = ceil_div(num_tokens, tile_tokens)
    shares_keys = num_cores == 2 and num_tiles == 1 and num_rows > 1
    tiles = min(_MAX_TILES, max(1, PARTITIONS // tile_tokens), ceil_div(num_tiles, num_cores))
    least_rows = ceil_div(num_rows, 2) if shares_keys else num_rows
    return PrefillCut(
        tile_tokens=tile_tokens,
        tiles=tiles,
        partitions=min(PARTITIONS, least_rows),
        rows_a_partition=max(1, min(_ROWS_A_PARTITION, least_rows // PARTITIONS)),
        shares_keys=shares_keys,
    )


def visits_of(allowed: torch.Tensor, cut: PrefillCut) -> Visits:
    """Blocks of keys with an allowed entry, first to last, the same number for each query block.

    The number is data to the host but shape to the kernel: it is rounded up to a power of two, so
    that few kernels are compiled; what fills it up are blocks that nobody sees.
    """
    num_tokens, num_rows = allowed.shape
    num_blocks = ceil_div(num_rows, cut.visit_keys)
    query_blocks = ceil_div(num_tokens, cut.block_tokens)
    begin = torch.arange(num_blocks, device=allowed.device) * cut.visit_keys
    start = begin.clamp(max=num_rows - cut.visit_keys)
    j, p = torch.meshgrid(
        torch.arange(cut.rows_a_partition, device=allowed.device),
        torch.arange(cut.partitions, device=allowed.device),
        indexing="ij",
    )
    rows = start[:, None] + (p * cut.rows_a_partition + j).reshape(1, -1)  # [blocks, K]
    padded = allowed.new_zeros((query_blocks * cut.block_tokens, num_blocks, cut.visit_keys))
    padded[:num_tokens] = allowed[:, rows] & (rows >= begin[:, None])
    tiles = padded.view(query_blocks, cut.block_tokens, num_blocks, cut.visit_keys)
    needed = tiles.any(3).any(1)  # [query blocks, blocks]
    most = max(1, int(needed.sum(1).max()))
    num_visits = min(num_blocks, 1 << (most - 1).bit_length())
    visited = torch.argsort((~needed).to(torch.uint8), dim=1, stable=True)[:, :num_visits]
    of_block = torch.arange(query_blocks, device=allowed.device)[:, None]
    return Visits(
        starts=start[visited].reshape(1, -1).to(torch.int32),
        allowed=tiles.transpose(1, 2)[of_block, visited].to(torch.uint8),
    )
