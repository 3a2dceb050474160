"""A grid is every combination of its axes, less the oracle itself and what is left out by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import InputError
from suites.loader import load_token_suite

_HEAD = """checkpoint = "tiny-A"
[[prompts]]
name = "p"
length = 5
max_tokens = 2
[settings.one]
numerics = "exact"
[[grids]]
name = "g"
oracle = "one"
judge = "equal"
logit_bound = 0.0
"""


def _written(folder: Path, grid: str) -> Path:
    path = folder / "s.toml"
    path.write_text(_HEAD + grid)
    return path


def test_pairs_are_named_after_what_differs_from_the_oracle(tmp_path: Path) -> None:
    grid = """batch = [1, 2]
without = [{cp = 2, enforce_eager = false}]
[grids.axes]
cp = [1, 2]
enforce_eager = [true, false]
context_buckets = [[32, 64]]
"""
    suite = load_token_suite(_written(tmp_path, grid))
    assert [pair.name for pair in suite.pairs] == [
        "g context_buckets=32,64",
        "g context_buckets=32,64 batch=2",
        "g context_buckets=32,64 enforce_eager=False",
        "g context_buckets=32,64 enforce_eager=False batch=2",
        "g cp=2 context_buckets=32,64",
        "g cp=2 context_buckets=32,64 batch=2",
    ]
    last = suite.pairs[-1]
    assert (last.candidate.cp, last.candidate.context_buckets, last.batch) == (2, (32, 64), 2)
    assert last.candidate.numerics == last.oracle.numerics == "exact"
    assert last.strict


def test_the_oracle_alone_against_itself_is_no_pair_but_among_others_is(tmp_path: Path) -> None:
    grid = "batch = [1, 3]\n[grids.axes]\ncp = [1, 2]\n"
    suite = load_token_suite(_written(tmp_path, grid))
    assert [pair.name for pair in suite.pairs] == ["g batch=3", "g cp=2", "g cp=2 batch=3"]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("[grids.axes]\ncpp = [1]\n", "unknown axis.*cp"),
        ("[grids.axes]\ncp = []\n", "give a list of values"),
        ("[grids.axes]\ncp = ['2']\n", "must be of type int"),
        ("[grids.axes]\ncp = [true]\n", "must be of type int"),
        ("[grids.axes]\ncp = [0]\n", "cp is at least 1"),
        ("[grids.axes]\n", "needs an axis"),
        ("noise = ['none']\n[grids.axes]\ncp = [2]\n", "unknown setting"),
        ("extra = 1\n[grids.axes]\ncp = [2]\n", "unknown key"),
    ],
)
def test_a_grid_that_says_nothing_sensible_is_refused(tmp_path: Path, grid: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_token_suite(_written(tmp_path, grid))


def test_the_shipped_grid_crosses_every_axis_with_every_other() -> None:
    suite = load_token_suite("grid")
    names = [pair.name for pair in suite.pairs]
    sizes = (2 * 2 * 2, 2 * 2 * 2 * 2 - 1, 2)
    # The oracle itself is a pair only among others.
    assert len(set(names)) == len(names) == 2 * sum(sizes) + 1
    candidates = [pair.candidate for pair in suite.pairs]
    both = [c for c in candidates if c.cp == 2 and c.prefill == "attention" and c.moe_capacity]
    assert {c.speculative for c in both} == {"", "dspark"}
    assert {c.cp for c in candidates if not c.enforce_eager} == {1, 2}


def test_the_shipped_matrix_crosses_layouts_chunks_buckets_graphs_and_batches() -> None:
    suite = load_token_suite("matrix")
    layouts = {(1, 0), (1, 4), (2, 0), (2, 4), (4, 0)}
    for numerics in ("exact", "quantised"):
        pairs = [pair for pair in suite.pairs if pair.oracle.numerics == numerics]
        ways = {
            (
                (one.candidate.cp, one.candidate.ep),
                one.candidate.max_num_batched_tokens,
                one.candidate.context_buckets,
                one.candidate.enforce_eager,
                one.batch,
            )
            for one in pairs
        }
        assert {way[0] for way in ways} == layouts
        assert len(ways) == len(pairs) == len(layouts) * 2 * 2 * 2 * 2
        assert {one.judge for one in pairs} == {"equal"}
