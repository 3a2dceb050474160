"""Text token by token, and stop texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.serve.text import Detokeniser, StopText, Text
from tests.engine.serve.running import checkpoint_with_tokenizer


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text(checkpoint_with_tokenizer(tmp_path_factory.mktemp("text")))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 511), max_size=40), skip=st.booleans())
def test_the_pieces_of_any_ids_join_to_their_text(text: Text, ids: list[int], skip: bool) -> None:
    detokeniser = Detokeniser(text, skip_special_tokens=skip)
    pieces = [detokeniser.add(token) for token in ids]
    assert "".join(pieces) + detokeniser.flush() == text.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(written=st.text(max_size=20))
def test_a_character_appears_whole_and_never_as_a_replacement(text: Text, written: str) -> None:
    if "\ufffd" in written:
        return
    detokeniser = Detokeniser(text, skip_special_tokens=True)
    pieces = [detokeniser.add(token) for token in text.encode(written)]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == text.decode(text.encode(written))


def test_a_checkpoint_without_a_tokenizer_has_empty_texts(tmp_path: Path) -> None:
    none = Text(tmp_path)
    assert not none.is_known
    assert none.decode([3, 4]) == ""
    assert none.piece(7) == "token_id:7"


def reference_cut(whole: str, stop: list[str]) -> str:
    places = [whole.find(item) for item in stop if item in whole]
    return whole[: min(places)] if places else whole


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    pieces=st.lists(st.text("ab", max_size=3), max_size=12),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_what_is_shown_ends_before_a_stop_text(pieces: list[str], stop: list[str]) -> None:
    stopper = StopText(stop)
    shown, whole = "", ""
    for number, piece in enumerate(pieces):
        whole += piece
        part, is_met = stopper.add(piece, is_last=number == len(pieces) - 1)
        shown += part
        assert whole.startswith(shown)
        assert is_met == any(item in whole for item in stop)
        if is_met:
            break
    assert shown == reference_cut(whole, stop)
