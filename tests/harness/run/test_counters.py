"""Counters of a point: equal per step, summed where the prompt decides."""

from __future__ import annotations

from harness.run.counters import differing_counter, pooled_counters, summed_totals

ALONE = {"collectives": 8.0, "launches": 40.0}


def test_counts_per_step_must_be_equal() -> None:
    assert differing_counter([ALONE, dict(ALONE)]) is None
    assert differing_counter([]) is None
    found = differing_counter([ALONE, {**ALONE, "launches": 41.0}])
    assert found == "launches is 40 and 41"


def test_a_count_that_one_request_lacks_differs() -> None:
    assert differing_counter([ALONE, {"collectives": 8.0}]) == "launches is 40 and absent"
    assert differing_counter([{"collectives": 8.0}, ALONE]) == "launches is absent and 40"


def test_what_the_prompt_decides_may_differ_and_adds_up() -> None:
    drafted = [
        {**ALONE, "num_drafts": 4.0, "num_draft_tokens": 12.0, "num_accepted_tokens": 6.0}
        | {"accepted_at_0": 4.0, "accepted_at_1": 2.0, "mean_acceptance_length": 2.5},
        {**ALONE, "num_drafts": 1.0, "num_draft_tokens": 3.0, "num_accepted_tokens": 3.0}
        | {"accepted_at_0": 1.0, "accepted_at_1": 1.0, "accepted_at_2": 1.0}
        | {"mean_acceptance_length": 4.0, "moe_overflows": 2.0, "num_preemptions": 1.0},
    ]
    assert differing_counter(drafted) is None
    # 5 blocks, 9 accepted: the mean over blocks, not the mean of means.
    assert pooled_counters(drafted) == {
        **ALONE,
        "num_drafts": 5.0,
        "num_draft_tokens": 15.0,
        "num_accepted_tokens": 9.0,
        "accepted_at_0": 5.0,
        "accepted_at_1": 3.0,
        "accepted_at_2": 1.0,
        "num_preemptions": 1.0,
        "mean_acceptance_length": 1 + 9 / 5,
    }


def test_a_count_that_differs_is_left_out_and_no_name_is_made_up() -> None:
    assert pooled_counters([ALONE, {**ALONE, "launches": 41.0}]) == {"collectives": 8.0}
    assert pooled_counters([ALONE, {"collectives": 8.0}]) == {"collectives": 8.0}
    assert pooled_counters([]) == {}


def test_totals_are_known_only_where_every_stretch_tells_them() -> None:
    first = {"compile_events": 1.0, "moe_overflows": 3.0, "collectives": 9.0}
    assert summed_totals([first, {"compile_events": 0.0}]) == {"compile_events": 1.0}
    assert summed_totals([first, first]) == {"compile_events": 2.0, "moe_overflows": 6.0}
    assert summed_totals([]) == {}
