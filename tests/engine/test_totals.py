"""What all steps of an engine came to, and of the last call what a sweep stores."""

from __future__ import annotations

from engine.llm import LLM
from tests.engine.oracle import settings
from tests.fakes.formula_engine import formula_engine


def test_counts_of_all_steps_add_up() -> None:
    with LLM.in_one_process(settings(cp=2)) as llm:
        assert llm.totals == {}
        (one,) = llm.generate([[3, 4, 5]], max_tokens=1)
        first = dict(llm.totals)
        assert first["collectives"] == one.counters["collectives"] > 0
        llm.generate([[3, 4, 5]], max_tokens=1)
        assert llm.totals == {name: 2 * count for name, count in first.items()}
        assert not [name for name in first if name.endswith("_per_layer")]


def test_a_call_tells_its_own_share_and_only_what_is_known() -> None:
    with formula_engine(counters={"moe_overflows": 2.0}) as llm:
        for _ in range(2):
            llm.generate([[3, 4, 5]], max_tokens=3)
            assert llm.facts()["num_moe_overflows"] == 3 * 2.0
        assert "num_compile_events" not in llm.facts()
        assert llm.totals["moe_overflows"] == 2 * 3 * 2.0
