"""What a client asks for becomes the rule of its tokens."""

from __future__ import annotations

from engine.schedule.distribution import Candidates
from engine.serve.requests import Sampling
from engine.serve.sampling import chooser_for
from tests.fakes.formula_engine import formula_logits

END = 4


def test_greedy_requests_are_left_to_the_ranks() -> None:
    assert chooser_for(Sampling(8), 0, END) is None
    assert chooser_for(Sampling(8, top_k=5, top_p=0.5), 0, END) is None
    assert chooser_for(Sampling(8, min_tokens=3, ignore_eos=True), 0, END) is None


def test_a_temperature_or_an_end_token_held_back_needs_a_chooser() -> None:
    assert chooser_for(Sampling(8, min_tokens=3), 0, END) is not None
    assert chooser_for(Sampling(8, temperature=0.1), 0, END) is not None


def test_every_field_reaches_the_rule() -> None:
    row = Candidates.of_row(formula_logits(9, 3))
    best_two = set(row.ids[:2].tolist())
    one = chooser_for(Sampling(8, temperature=50.0, top_k=2), 7, END)
    other = chooser_for(Sampling(8, temperature=50.0, top_k=2), 8, END)
    narrow = chooser_for(Sampling(8, temperature=50.0, top_p=1e-6), 7, END)
    assert one is not None
    assert other is not None
    assert narrow is not None
    draws = [one.choose([row])[0] for _ in range(40)]
    assert set(draws) == best_two
    assert draws != [other.choose([row])[0] for _ in range(40)]
    assert {narrow.choose([row])[0] for _ in range(40)} == {int(row.ids[0])}
