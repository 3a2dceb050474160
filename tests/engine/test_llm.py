"""What a caller of LLM sees: errors, time stamps, ends, facts."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from engine import LLM
from harness.core.engine_face import EngineFace
from harness.core.errors import UsageError
from tests.engine.oracle import settings


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, engine; print('torch' in sys.modules, engine.LLM, 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "<class", "'engine.llm.LLM'>", "True"]


@pytest.fixture(scope="module")
def llm() -> Any:
    with LLM(settings("long")) as engine:
        yield engine


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt is empty"),
        ([3, 512], r"prompt\[1\] is 512: token ids lie in 0..511"),
        ([-1], r"prompt\[0\] is -1"),
        ([3] * 129, "prompt has 129 tokens: max_model_len is 128"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused_with_the_limit(
    llm: LLM, prompt: list[int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        llm.generate([prompt], max_tokens=1)
    with pytest.raises(UsageError, match=message):
        llm.score(prompt)


def test_a_request_longer_than_the_model_length_names_both_parts(llm: LLM) -> None:
    message = r"120 tokens plus max_tokens=9 is 129, max_model_len is 128"
    with pytest.raises(UsageError, match=message):
        llm.generate([[3] * 120], max_tokens=9)
    with pytest.raises(UsageError, match="max_tokens=0"):
        llm.generate([[3]], max_tokens=0)


def test_a_refused_request_in_a_batch_leaves_no_other_behind(llm: LLM) -> None:
    with pytest.raises(UsageError, match="max_model_len"):
        llm.generate([[3, 4], [3] * 128], max_tokens=2)
    (one,) = llm.generate([[3, 4]], max_tokens=2)
    assert len(one.token_ids) == 2


def test_a_request_larger_than_the_pool_is_refused() -> None:
    with (
        LLM(settings("long", num_kv_blocks=2)) as small,
        pytest.raises(UsageError, match="needs 3 KV pages of 8 tokens, num_kv_blocks is 2"),
    ):
        small.generate([[3] * 10], max_tokens=7)


def test_time_stamps_lie_between_call_and_return_and_never_fall(llm: LLM) -> None:
    before = time.perf_counter_ns()
    (one,) = llm.generate([[7, 8, 9]], max_tokens=5)
    after = time.perf_counter_ns()
    assert len(one.token_ns) == len(one.token_ids) == 5
    stamps = [before, one.t_send_ns, *one.token_ns, after]
    assert stamps == sorted(stamps)
    assert one.finish_reason == "length"
    assert one.logits is None


def test_the_token_is_the_lowest_id_among_the_largest_logits(llm: LLM) -> None:
    (one,) = llm.generate([[7, 8, 9]], max_tokens=5, want_logits=True)
    assert one.logits is not None
    assert one.logits.dtype == np.float64
    assert tuple(one.logits.argmax(1).tolist()) == one.token_ids


def test_the_end_token_ends_a_request_that_does_not_ignore_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    (free,) = llm.generate([[7, 8, 9]], max_tokens=6)
    third = free.token_ids[2]
    first = free.token_ids.index(third)
    monkeypatch.setattr(llm.scheduler.schedulers[0], "_eos_token_id", third)
    (ended,) = llm.generate([[7, 8, 9]], max_tokens=6, ignore_eos=False)
    assert ended.token_ids == free.token_ids[: first + 1]
    assert ended.finish_reason == "stop"
    (ignoring,) = llm.generate([[7, 8, 9]], max_tokens=6)
    assert ignoring.token_ids == free.token_ids


def test_facts_count_window_wraps_and_excluded_blocks(llm: LLM) -> None:
    llm.score([5] * 40)
    facts = llm.facts()
    assert facts["num_positions"] == 40
    assert facts["num_window_wraps"] == 4  # positions 8, 16, 24, 32 begin a new round of 8
    # 40 entries are 10 blocks of 4, of which 8 are kept.
    assert facts["min_blocks_excluded_share"] == pytest.approx(0.2)


def test_a_closed_engine_says_so() -> None:
    engine = LLM(settings("long"))
    engine.close()
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.score([3])


def test_an_expert_group_of_broken_cp_groups_is_refused_naming_what_is_possible() -> None:
    with pytest.raises(UsageError, match=r"ep=3 with cp=2.*give ep=2 .*or a multiple of 2"):
        LLM(settings("long", cp=2, ep=3))
    with pytest.raises(UsageError, match="ep=2 with cp=4"):
        LLM(settings("long", cp=4, ep=2))


def test_it_is_the_face_that_procedures_expect(llm: LLM) -> None:
    face: EngineFace = llm
    assert face.vocab_size == 512
    assert face.settings.label == "exact cp=1 ops=references"
