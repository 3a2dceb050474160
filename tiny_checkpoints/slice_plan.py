"""What a slice of a checkpoint is: its configuration, and where each of its tensors comes from."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from tiny_checkpoints.engram_rows import engram_primes, engram_table_rows
from tiny_checkpoints.geometry import Geometry

__all__ = ["RowSpan", "SlicePlan", "plan_slice"]

RowSpan = tuple[int, int]
"""Half-open range of rows of a source tensor."""

_LAYER = re.compile(r"^layers\.(\d+)\.(.*)$")
_EXPERT = re.compile(r"^ffn\.experts\.(\d+)\.(.*)$")
_ROUTER = ("ffn.gate.weight", "ffn.gate.bias", "ffn.gate.bias_vl")
_TABLE = ("engram.embed.weight", "engram.embed.scale")


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """One slice.

    Attributes:
        config: the whole config.json of the slice.
        layers, experts: ids of the source, in their new order.
        table_spans: new layer id -> spans of its Engram table's rows; empty where all are kept.
        notices: what differs from the source beside being smaller.
    """

    config: Mapping[str, Any]
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    table_spans: Mapping[int, tuple[RowSpan, ...]]
    notices: tuple[str, ...]

    def source_of(self, name: str) -> tuple[str, tuple[RowSpan, ...]]:
        """Source tensor of a tensor of the slice, and the rows to take; () takes all."""
        layer = _LAYER.match(name)
        if layer is None:
            return name, ()
        number, rest = int(layer[1]), layer[2]
        prefix = f"layers.{self.layers[number]}."
        expert = _EXPERT.match(rest)
        if expert is not None:
            return f"{prefix}ffn.experts.{self.experts[int(expert[1])]}.{expert[2]}", ()
        if rest in _ROUTER:
            return prefix + rest, tuple((e, e + 1) for e in self.experts)
        if rest in _TABLE:
            return prefix + rest, self.table_spans.get(number, ())
        return prefix + rest, ()


def plan_slice(
    config: Mapping[str, Any],
    file: Path,
    layers: Sequence[int],
    experts: Sequence[int],
    engram_vocab_size: int = 0,
) -> SlicePlan:
    """Lay a slice out.

    Args:
        config: the source's config.json, nested form.
        file: its path, for messages.
        layers, experts: ids to keep, ascending.
        engram_vocab_size: 0 keeps Engram tables whole, else the smaller size to cut them to.

    Raises:
        UsageError: ids that do not exist, or a selection that is no model: the reason and what to
            keep beside it are named.
        InputError: the source's configuration is wrong.
    """
    source = Geometry.from_config(config["text_config"], file)
    _check_ids("--layers", layers, source.num_hidden_layers)
    _check_ids("--experts", experts, source.n_routed_experts)
    _check_owners(source, layers)
    if len(experts) < source.num_experts_per_tok:
        raise UsageError(
            f"--experts keeps {len(experts)}, a token needs {source.num_experts_per_tok} "
            "(num_experts_per_tok): keep at least as many"
        )
    notices: list[str] = []
    text = copy.deepcopy(dict(config["text_config"]))
    text["num_hidden_layers"] = len(layers)
    text["n_routed_experts"] = len(experts)
    for key in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids"):
        text[key] = [layers.index(layer) for layer in getattr(source, key) if layer in layers]
    text["candidate_source_layer_id"] = _candidate_source(source, layers, notices)
    keeps_draft = _cut_draft(source, layers, text, notices)
    ratios = [source.compress_ratios[layer] for layer in layers]
    draft_ratios = list(source.compress_ratios[source.num_hidden_layers :])
    text["compress_ratios"] = ratios + (draft_ratios if keeps_draft else [])
    spans = _cut_tables(source, layers, engram_vocab_size, text, notices)
    plan = SlicePlan(
        {**config, "text_config": text}, tuple(layers), tuple(experts), spans, tuple(notices)
    )
    Geometry.from_config(text, file)  # what has been written must read back
    return plan


def _check_ids(option: str, ids: Sequence[int], count: int) -> None:
    if not ids or list(ids) != sorted(set(ids)):
        raise UsageError(f"{option} {list(ids)}: name at least one id, each once")
    if ids[0] < 0 or ids[-1] >= count:
        raise UsageError(f"{option}: {ids[-1]} is outside 0..{count - 1} of this checkpoint")


def _check_owners(source: Geometry, layers: Sequence[int]) -> None:
    """A layer reads the cache and the indices of the last source at or before it."""
    for layer in layers:
        if not source.ratio(layer):
            continue
        for key, what in (("kv_source_layer_ids", "cache"), ("index_source_layer_ids", "indices")):
            before = [owner for owner in getattr(source, key) if owner <= layer]
            if before and before[-1] not in layers:
                raise UsageError(
                    f"--layers keeps {layer}, which reads the {what} of layer {before[-1]}: keep "
                    f"{before[-1]} too, or another layer would stand in for it"
                )


def _candidate_source(source: Geometry, layers: Sequence[int], notices: list[str]) -> int:
    old = source.candidate_source_layer_id
    if old in layers:
        return layers.index(old)
    kept = [layer for layer in source.index_source_layer_ids if layer in layers]
    if not kept:
        raise UsageError(
            f"--layers {list(layers)} keeps no index source: keep at least one of "
            f"{list(source.index_source_layer_ids)}, the configuration needs a candidate source"
        )
    notices.append(
        f"the candidate source, layer {old}, is not kept and neither is a layer that uses its "
        f"candidates; layer {kept[-1]} takes its place in the configuration, without effect"
    )
    return layers.index(kept[-1])


def _cut_draft(
    source: Geometry, layers: Sequence[int], text: dict[str, Any], notices: list[str]
) -> bool:
    """Whether draft stages stay: only with every layer that they tap."""
    if not source.num_nextn_predict_layers:
        return False
    missing = [layer for layer in source.dspark_target_layer_ids if layer not in layers]
    if not missing:
        text["dspark_target_layer_ids"] = [layers.index(i) for i in source.dspark_target_layer_ids]
        notices.append("draft stages are kept whole, with all of their own experts")
        return True
    text["num_nextn_predict_layers"] = 0
    text["dspark_target_layer_ids"] = []
    notices.append(f"draft stages are left out: they tap layers {missing}, which are not kept")
    return False


def _cut_tables(
    source: Geometry,
    layers: Sequence[int],
    vocab_size: int,
    text: dict[str, Any],
    notices: list[str],
) -> dict[int, tuple[RowSpan, ...]]:
    """Rows of each kept Engram table; rewrites the sizes in `text`."""
    old_ids = source.engram_layer_ids
    kept = [layer for layer in old_ids if layer in layers]
    text["engram_num_embeddings"] = []
    if not kept:
        return {}
    for layer in kept:
        if layers.index(layer) != layer:
            notices.append(
                f"layer {layer}'s Engram is now layer {layers.index(layer)}'s: its n-gram hash "
                "draws other multipliers there, so a text reads other (real) rows than before"
            )
    if not vocab_size and tuple(kept) != old_ids[: len(kept)]:
        raise UsageError(
            f"--layers keeps the Engram of layer {kept[-1]} but not of "
            f"{[layer for layer in old_ids if layer not in kept]}: table sizes come from primes "
            "counted over the Engram layers in order; keep those too, or cut the tables with "
            "--engram-vocab-size"
        )
    size = vocab_size or source.engram_vocab_size
    if size > source.engram_vocab_size:
        raise UsageError(
            f"--engram-vocab-size {size} exceeds the checkpoint's {source.engram_vocab_size}"
        )
    shape = (source.engram_max_ngram_size, source.engram_n_heads)
    new = engram_primes(len(kept), *shape, size)
    text["engram_vocab_size"] = size
    text["engram_num_embeddings"] = engram_table_rows(new)
    if not vocab_size:
        return {}
    notices.append(
        f"Engram tables are cut to primes above {size}: the first rows of each head's section"
    )
    old = engram_primes(len(old_ids), *shape, source.engram_vocab_size)
    return {
        layers.index(layer): _spans(old[old_ids.index(layer)], new[place])
        for place, layer in enumerate(kept)
    }


def _spans(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> tuple[RowSpan, ...]:
    """The first rows of every section (order, head) of a table."""
    spans, first = [], 0
    for old_order, new_order in zip(old, new, strict=True):
        for old_rows, new_rows in zip(old_order, new_order, strict=True):
            if new_rows > old_rows:
                raise UsageError(
                    f"--engram-vocab-size: a section of {old_rows} rows cannot give {new_rows}; "
                    "choose a smaller size"
                )
            spans.append((first, first + new_rows))
            first += old_rows
    return tuple(spans)
