"""FlashMLA's fused attention (model.md §5.3): q norm, q RoPE, sparse attention, inverse RoPE of the
output and its fp8 cast, which `fp8_einsum` takes up.

The CUDA kernels want weights permuted to their register layout and give packed, TMA-aligned
scales. Here everything is plain and row-major (port.md R1): the permutations keep their faces,
check their operands and change nothing, and scales are float32. Each step is rounded where the
separate functions round: q to bf16, o to bf16 before and after its rotation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.numerics import FAST
from references.latent_rows import (
    attend_rows,
    cache_values,
    rows_within_length,
    selected_rows,
)
from references.operands import (
    refuse,
    require,
    require_float,
    require_ids,
    require_multiple,
    require_shape,
)
from references.paged_caches import entry_bytes
from references.rope import rope
from references.scaled_matrices import ScaledMatrix, num_channels, per_token_cast

__all__ = ["fused_norm_rope_attn_rope_cast"]

_OP = "fused_norm_rope_attn_rope_cast"


@dataclass(frozen=True, slots=True)
class _Fusion:
    """What stands around the attention.

    Attributes:
        cos, sin: [s, rope_dim / 2] of each row's position.
        norm_eps: None where q is not normalised.
        num_groups: groups of wo_a that the heads fall into.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    norm_eps: float | None
    num_groups: int
    num_per_channels: int
    round_sf: bool

    def query(self, q: torch.Tensor) -> torch.Tensor:
        """q [s, h, D] bf16, normalised if asked for and rotated."""
        if self.norm_eps is not None:
            wide = q.float()
            q = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.norm_eps)).to(
                q.dtype
            )
        return rope(q, self.cos, self.sin, numerics=FAST)

    def cast(self, o: torch.Tensor) -> ScaledMatrix:
        """fp8 [s, G, h/G * d_v] and float32 scales [s, G, .] of o [s, h, d_v] bf16."""
        turned = rope(o, self.cos, -self.sin, numerics=FAST)
        rows, width = o.shape[0], o.shape[1] * o.shape[2] // self.num_groups
        flat = turned.reshape(rows * self.num_groups, width)
        data, scale = per_token_cast(_OP, flat, "e4m3", self.num_per_channels, self.round_sf)
        return data.view(rows, self.num_groups, width), scale.view(rows, self.num_groups, -1)


class fused_norm_rope_attn_rope_cast:  # noqa: N801 - a module with the vendor's name
    """The fused functions, as `flash_mla.fused_norm_rope_attn_rope_cast.prefill(...)`."""

    @staticmethod
    def prefill(
        enable_q_norm: bool,
        rms_norm_eps: float,
        token_positions: torch.Tensor,
        is_rope_neox_style: bool,
        rope_dim: int,
        cos_sin_cache: torch.Tensor,
        n_wv_group: int,
        num_per_channels: int,
        use_tma_aligned_col_major_sf: bool,
        round_sf: bool,
        use_packed_ue8m0: bool,
        q: torch.Tensor,
        kv: torch.Tensor,
        indices: torch.Tensor,
        sm_scale: float,
        d_v: int = 512,
        attn_sink: torch.Tensor | None = None,
        topk_length: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """out_fp8 [s, G, h/G * d_v], out_sf [s, G, h/G * d_v / 32] float32, max_logits and lse.

        Args:
            enable_q_norm: False in V4.1; True divides each head by its root mean square.
            token_positions: [s] rows of cos_sin_cache [positions, rope_dim] (cosines, then sines).
            q, kv: [s, h, D] and [n, 1, D] bf16. indices [s, 1, topk], < 0 or >= n for no key.

        A row without a key has output 0, max_logits -inf and lse +inf, as the original says.

        Raises:
            UsageError: packed or column-major scales, neox rotation, operands that do not meet.
        """
        fusion = _fusion(
            q, enable_q_norm, rms_norm_eps, token_positions, is_rope_neox_style, rope_dim,
            cos_sin_cache, n_wv_group, num_per_channels, use_tma_aligned_col_major_sf, round_sf,
            use_packed_ue8m0, d_v,
        )  # fmt: skip
        require_float(_OP, "kv", kv, ndim=3)
        require_shape(_OP, "kv", kv, (kv.shape[0], 1, q.shape[2]))
        require_ids(_OP, "indices", indices, ndim=3)
        require_shape(_OP, "indices", indices, (q.shape[0], 1, indices.shape[2]))
        rows = indices.squeeze(1).long()
        rows = torch.where((rows < 0) | (rows >= kv.shape[0]), -1, rows)
        rows = rows_within_length(_OP, rows, topk_length)
        keys = kv.squeeze(1).float()
        out, largest, lse = attend_rows(fusion.query(q), keys, rows, attn_sink, sm_scale)
        data, scale = fusion.cast(out[..., :d_v])
        return data, scale, largest, _endless_where_empty(lse)

    @staticmethod
    def decode(
        enable_q_norm: bool,
        rms_norm_eps: float,
        token_positions: torch.Tensor,
        is_rope_neox_style: bool,
        rope_dim: int,
        cos_sin_cache: torch.Tensor,
        n_wv_group: int,
        num_per_channels: int,
        use_tma_aligned_col_major_sf: bool,
        round_sf: bool,
        use_packed_ue8m0: bool,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        indices_in_kvcache: torch.Tensor,
        sm_scale: float,
        d_v: int = 512,
        attn_sink: torch.Tensor | None = None,
        topk_length: torch.Tensor | None = None,
        extra_k_cache: torch.Tensor | None = None,
        extra_indices_in_kvcache: torch.Tensor | None = None,
        extra_topk_length: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """out_fp8, out_sf as `prefill` gives them, and lse [s, h] float32, over paged caches.

        Args:
            k_cache, extra_k_cache: uint8 pages; 528 bytes an entry (window) or 288 (compressed)
                at D = 512 say which layout it is.
            indices_in_kvcache, extra_indices_in_kvcache: [s, topk] page * page_size + offset.

        Raises:
            UsageError: as `prefill`; entries of another size, an extra cache without indices.
        """
        fusion = _fusion(
            q, enable_q_norm, rms_norm_eps, token_positions, is_rope_neox_style, rope_dim,
            cos_sin_cache, n_wv_group, num_per_channels, use_tma_aligned_col_major_sf, round_sf,
            use_packed_ue8m0, d_v,
        )  # fmt: skip
        keys, rows = _cached(q, k_cache, "indices_in_kvcache", indices_in_kvcache, topk_length)
        if extra_k_cache is not None:
            if extra_indices_in_kvcache is None:
                refuse(_OP, "extra_k_cache needs extra_indices_in_kvcache")
            extra_keys, extra_rows = _cached(
                q,
                extra_k_cache,
                "extra_indices_in_kvcache",
                extra_indices_in_kvcache,
                extra_topk_length,
            )
            shifted = torch.where(extra_rows >= 0, extra_rows + len(keys), extra_rows)
            rows, keys = torch.cat((rows, shifted), dim=1), torch.cat((keys, extra_keys))
        out, _, lse = attend_rows(fusion.query(q), keys, rows, attn_sink, sm_scale)
        data, scale = fusion.cast(out[..., :d_v])
        return data, scale, _endless_where_empty(lse)

    @staticmethod
    def permute_q_b_proj(weight_and_sf: ScaledMatrix, h_q: int, d_q: int) -> ScaledMatrix:
        """wq_b [h_q * d_q, q_lora] and its scales as the fused kernels take them: unchanged.

        Raises:
            UsageError: another number of rows, neither fp8 nor fp4 data.
        """
        weight, scale = weight_and_sf
        channels = num_channels("permute_q_b_proj", weight)
        require_shape("permute_q_b_proj", "q_b_proj", weight, (h_q * d_q, weight.shape[-1]))
        require(channels > 0, "permute_q_b_proj", "q_b_proj has no channels")
        return weight, scale

    @staticmethod
    def permute_wv_proj(weight_and_sf: ScaledMatrix, wv_group_size: int, d_o: int) -> ScaledMatrix:
        """wo_a [G, out, wv_group_size * d_o] and its scales for `fp8_einsum`: unchanged.

        Raises:
            UsageError: another width, neither fp8 nor fp4 data.
        """
        weight, scale = weight_and_sf
        op = "permute_wv_proj"
        require(weight.ndim == 3, op, f"wv_proj has shape {tuple(weight.shape)}: [G, out, in]")
        channels = num_channels(op, weight)
        require(
            channels == wv_group_size * d_o,
            op,
            f"wv_proj has {channels} channels: {wv_group_size} heads of {d_o} are "
            f"{wv_group_size * d_o}",
        )
        return weight, scale


def _fusion(
    q: torch.Tensor,
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    d_v: int,
) -> _Fusion:
    """The common arguments, checked."""
    packed = use_tma_aligned_col_major_sf or use_packed_ue8m0
    require(not packed, _OP, "scales are plain float32 rows here: pass False for both layouts")
    require(not is_rope_neox_style, _OP, "rotation is of adjacent pairs: is_rope_neox_style=False")
    require_float(_OP, "q", q, ndim=3)
    require_ids(_OP, "token_positions", token_positions, ndim=1)
    require_shape(_OP, "token_positions", token_positions, (q.shape[0],))
    require_float(_OP, "cos_sin_cache", cos_sin_cache, ndim=2)
    require_shape(_OP, "cos_sin_cache", cos_sin_cache, (cos_sin_cache.shape[0], rope_dim))
    require_multiple(_OP, "rope_dim", rope_dim, 2)
    require(rope_dim <= d_v <= q.shape[2], _OP, f"d_v is {d_v}, q has {q.shape[2]} channels")
    require_multiple(_OP, "heads", q.shape[1], n_wv_group)
    require_multiple(_OP, "d_v", d_v, num_per_channels)
    positions = token_positions.long()
    inside = bool(((positions >= 0) & (positions < len(cos_sin_cache))).all())
    require(inside, _OP, f"token_positions must be within 0..{len(cos_sin_cache) - 1}")
    cos, sin = cos_sin_cache[positions].chunk(2, dim=1)
    return _Fusion(
        cos,
        sin,
        rms_norm_eps if enable_q_norm else None,
        n_wv_group,
        num_per_channels,
        round_sf,
    )


def _cached(
    q: torch.Tensor,
    cache: torch.Tensor,
    name: str,
    indices: torch.Tensor,
    length: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 rows of a cache, and [s, topk] of those wanted."""
    head_dim = q.shape[2]
    layout: str | None = None
    if cache.dtype == torch.uint8:
        sizes = {sum(entry_bytes(kind, head_dim)): kind for kind in ("kv_fp8", "kv_fp4")}
        if cache.shape[-1] not in sizes:
            refuse(_OP, f"a cache has {cache.shape[-1]} bytes an entry: {sorted(sizes)} are known")
        layout = sizes[cache.shape[-1]]
    keys = cache_values(_OP, cache, head_dim, layout)
    require_ids(_OP, name, indices, ndim=2)
    if length is not None:
        require_shape(_OP, "topk_length", length, (q.shape[0],))
    rows = selected_rows(_OP, name, indices.unsqueeze(1), length, (q.shape[0], 1))
    return keys, rows


def _endless_where_empty(lse: torch.Tensor) -> torch.Tensor:
    return torch.where(lse == -torch.inf, torch.inf, lse)
