"""Goldens on disk: served while checkpoint, settings, prompt and source are the same."""

from dataclasses import replace

import numpy as np
import pytest

from harness.core.engine_face import EngineSettings
from harness.core.errors import InputError, MissingEvidenceError, UsageError
from harness.core.token_suite import Prompt, TokenPair, TokenSuite
from harness.run.golden_cache import Golden, GoldenCache, source_hash
from harness.run.tokens import run_tokens
from tests.harness.fake_engine import FakeWorld

ORACLE = EngineSettings("ckpt", numerics="exact", ops=("madeup_reference.ops:TABLE",))
CANDIDATE = replace(ORACLE, cp=2)
PROMPT = Prompt("short", max_tokens=4, ids=(3, 5, 7))
GOLDEN = Golden((1, 2), np.eye(2), np.eye(2) * 2, {"num_window_wraps": 1.0}, {"launches": 3.0})


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A package that stands for the reference's source."""
    folder = tmp_path / "site" / "madeup_reference"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "ops.py").write_text("TABLE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder / "ops.py"


def cache(tmp_path, checkpoint_id="abc", **options):
    return GoldenCache(tmp_path / "goldens", checkpoint_id, (), **options)


def test_an_entry_comes_back_bit_for_bit(tmp_path, source):
    cache(tmp_path).save(ORACLE, PROMPT, GOLDEN)
    found = cache(tmp_path).load(ORACLE, PROMPT)
    assert found.token_ids == GOLDEN.token_ids
    assert found.logits.tobytes() == GOLDEN.logits.tobytes()
    assert found.forced_logits.tobytes() == GOLDEN.forced_logits.tobytes()
    assert (found.facts, found.counters) == (GOLDEN.facts, GOLDEN.counters)


def test_other_content_is_another_key(tmp_path, source):
    cache(tmp_path).save(ORACLE, PROMPT, GOLDEN)
    assert cache(tmp_path, "other").load(ORACLE, PROMPT) is None
    assert cache(tmp_path).load(replace(ORACLE, fp8_max=240), PROMPT) is None
    assert cache(tmp_path).load(ORACLE, replace(PROMPT, ids=(3, 5, 8))) is None
    assert cache(tmp_path).load(ORACLE, replace(PROMPT, max_tokens=5)) is None
    elsewhere = replace(ORACLE, checkpoint="/elsewhere/ckpt")
    assert cache(tmp_path).load(elsewhere, replace(PROMPT, name="renamed")) is not None


def test_a_golden_of_other_source_is_refused_until_it_is_renewed(tmp_path, source):
    cache(tmp_path).save(ORACLE, PROMPT, GOLDEN)
    source.write_text("TABLE = 2\n")
    with pytest.raises(MissingEvidenceError, match="other source than today's reference"):
        cache(tmp_path).load(ORACLE, PROMPT)
    renewing = cache(tmp_path, renew=True)
    assert renewing.load(ORACLE, PROMPT) is None
    renewing.save(ORACLE, PROMPT, GOLDEN)
    assert cache(tmp_path).load(ORACLE, PROMPT) is not None


def test_a_new_or_renamed_file_changes_the_hash(source):
    before = source_hash(["madeup_reference"])
    (source.parent / "more.py").write_text("")
    added = source_hash(["madeup_reference"])
    (source.parent / "more.py").rename(source.parent / "moved.py")
    assert len({before, added, source_hash(["madeup_reference"])}) == 3
    with pytest.raises(UsageError, match="no source to hash"):
        source_hash(["there_is_no_such_package"])


@pytest.mark.parametrize("damage", ["cut", "edited"])
def test_a_damaged_file_is_an_error_not_a_golden(tmp_path, source, damage):
    path = cache(tmp_path).save(ORACLE, PROMPT, GOLDEN)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        with np.load(path) as file:
            arrays = dict(file)
        np.savez_compressed(path, **{**arrays, "logits": arrays["logits"] + 1})
    with pytest.raises(InputError, match="damaged golden"):
        cache(tmp_path).load(ORACLE, PROMPT)


def test_an_oracle_that_is_cached_is_not_opened_again(tmp_path, source):
    pair = TokenPair("cp2", CANDIDATE, ORACLE, "equal", logit_bound=1e-9)
    suite = TokenSuite("test", "tiny-A", (PROMPT,), (pair,))
    first, second = FakeWorld(), FakeWorld()
    before = [one.match for one in run_tokens(suite, first, goldens=cache(tmp_path))]
    after = [one.match for one in run_tokens(suite, second, goldens=cache(tmp_path))]
    assert first.opened == [ORACLE, CANDIDATE]
    assert second.opened == [CANDIDATE]
    assert before == after
    source.write_text("TABLE = 2\n")
    with pytest.raises(MissingEvidenceError):
        list(run_tokens(suite, FakeWorld(), goldens=cache(tmp_path)))
