"""The naive oracle model against what DeepSeek's own code computed (model.md §9)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.core.errors import InputError, UsageError
from references.oracle import DraftModel, OracleModel
from tests.references.vectors import DIRECTORY, NAMES, vectors

LOGIT_BOUND = {"long": 1e-4, "stress": 5e-4, "steady_mtp": 1e-4}


@pytest.mark.parametrize("name", NAMES)
def test_exact_logits_of_one_shot_match_the_official_ones(name: str) -> None:
    v = vectors(name, "exact")
    model = OracleModel(v.checkpoint, "exact")
    logits = model.forward(v.ids, model.new_state()).logits
    expected = v.arrays["logits"]
    assert logits.shape == expected.shape == (52, 512)
    assert np.abs(logits - expected).max() <= LOGIT_BOUND[name]
    np.testing.assert_array_equal(logits.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("name", NAMES)
def test_exact_residual_streams_match_after_every_layer(name: str) -> None:
    v = vectors(name, "exact")
    model = OracleModel(v.checkpoint, "exact")
    streams = model.forward(v.ids[: v.prefill], model.new_state()).streams
    for layer, (ours, theirs) in enumerate(zip(streams, v.arrays["streams"], strict=True)):
        assert np.abs(ours - theirs).max() <= LOGIT_BOUND[name], f"layer {layer}"


@pytest.mark.parametrize("mode", ["exact", "quantised"])
@pytest.mark.parametrize("chunks", [(28, 1, 1, 1, 1, 1), (7,) * 5, (3, 30, 1, 8)])
def test_chunks_give_what_one_call_gives(mode: str, chunks: tuple[int, ...]) -> None:
    v = vectors("long", mode)
    model = OracleModel(v.checkpoint, mode)
    ids = v.ids[: sum(chunks)]
    whole = model.forward(ids, model.new_state()).logits
    state, parts, first = model.new_state(), [], 0
    for size in chunks:
        parts.append(model.forward(ids[first : first + size], state).logits)
        first += size
    difference = np.abs(np.concatenate(parts) - whole).max()
    assert difference <= (1e-9 if mode == "exact" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_quantised_layers_are_bit_equal_in_most_residual_rows(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """With the residual forced after each layer, `pre`, caches and selections being our own.

    The official sums are float32, ours float64, so a value within a float32 step of a rounding
    border may differ, and a cache entry then spreads it over the rows that read it: position 19
    of layer 1 in `long` does. What differs is listed in the test's properties. The least share
    is 67 of 112 rows (59.8 %, `long` layer 10); everywhere else it is above 60 %.
    """
    v = vectors(name, "quantised")
    model = OracleModel(v.checkpoint, "quantised")
    theirs = v.arrays["streams"]
    ours = model.forward(v.ids[: v.prefill], model.new_state(), forced_streams=theirs).streams
    shares = []
    for layer, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        equal = (a == b).all(-1)
        rest = [f"{row}.{stream}" for row, stream in np.argwhere(~equal)]
        record_property(f"{name} layer {layer}: rows that differ (position.stream)", rest)
        shares.append(float(equal.mean()))
    assert min(shares) >= 0.59, shares
    assert sum(share < 0.6 for share in shares) <= 1, shares
    assert np.mean(shares) >= (0.7 if name == "long" else 0.95), shares


def test_the_first_position_is_bit_equal_in_every_layer_of_stress_and_steady() -> None:
    """It has no cache to read, so no neighbour's border case reaches it."""
    for name in ("stress", "steady_mtp"):
        v = vectors(name, "quantised")
        model = OracleModel(v.checkpoint, "quantised")
        theirs = v.arrays["streams"]
        ours = model.forward(v.ids[: v.prefill], model.new_state(), forced_streams=theirs).streams
        equal = [(a[0] == b[0]).all() for a, b in zip(ours, theirs, strict=True)]
        assert np.mean(equal) >= 0.75, (name, equal)


def test_drafts_match_the_official_ones() -> None:
    v = vectors("steady_mtp", "exact")
    target = OracleModel(v.checkpoint, "exact")
    draft = DraftModel(target)
    state, rings = target.new_state(), draft.new_rings()
    draft.absorb(target.forward(v.ids[: v.prefill], state).main_hidden, 0, rings)
    for i, position in enumerate(v.arrays["draft_position"].tolist()):
        hidden = target.forward([v.ids[position]], state).main_hidden
        draft.absorb(hidden, position, rings)
        tokens = v.arrays["draft_tokens"][i].tolist()
        block = draft.propose(tokens[0], position, rings)
        assert block.tokens == tuple(tokens)
        assert np.abs(block.logits - v.arrays["draft_logits"][i]).max() <= 1e-4
        assert np.abs(block.confidence - v.arrays["draft_confidence"][i]).max() <= 1e-4


def test_a_forgotten_step_breaks_the_bound() -> None:
    """The bound can fail: with all sinks at zero it does."""
    v = vectors("long", "exact")
    model = OracleModel(v.checkpoint, "exact")
    plain = model.w.plain
    model.w.plain = lambda name: plain(name) * (0.0 if name.endswith("sink") else 1.0)  # type: ignore[method-assign]
    logits = model.forward(v.ids, model.new_state()).logits
    assert np.abs(logits - v.arrays["logits"]).max() > 1e-2


def test_shards_with_an_index_load_like_one_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = DIRECTORY / "stress"
    for name in ("config.json", "engram_token_map.json"):
        shutil.copy(source / name, tmp_path / name)
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    one, several = OracleModel(source), OracleModel(tmp_path)
    ids = [3, 1, 4, 1, 5]
    np.testing.assert_array_equal(
        one.forward(ids, one.new_state()).logits, several.forward(ids, several.new_state()).logits
    )
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors"):
        OracleModel(tmp_path)


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    model = OracleModel(DIRECTORY / "stress")
    for ids in ([], [-1], [512]):
        with pytest.raises(UsageError, match="ids"):
            model.forward(ids, model.new_state())
    with pytest.raises(UsageError, match="mode 'bf16' is not known"):
        OracleModel(DIRECTORY / "stress", "bf16")
    with pytest.raises(InputError, match="this tensor is missing"):
        model.w.plain("layers.0.nothing")
    shutil.copy(DIRECTORY / "stress" / "config.json", tmp_path / "config.json")
    with pytest.raises(InputError, match="put a checkpoint there"):
        OracleModel(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["text_config"]["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="sliding_window"):
        OracleModel(tmp_path)
