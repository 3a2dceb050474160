"""Layers as region graphs: shared by kind, counted, equal to eager execution bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine import LLM
from engine.graphs import compilers
from engine.graphs.region_times import kind_of_layer
from engine.graphs.uint8_backend import float8_nodes
from engine.parallel.executor import LockstepExecutor, SoloExecutor
from engine.worker import Worker
from harness.core.engine_face import EngineSettings, Generation
from harness.core.errors import MissingEvidenceError, UsageError
from tests.engine.oracle import all_ids, settings

PROMPT_LEN, NUM_TOKENS = 19, 3  # two token buckets, one context bucket


def _compiled(**changes: Any) -> EngineSettings:
    return settings(**{"enforce_eager": False, "compile_backend": "aten", **changes})


def _generated(llm: LLM, num_tokens: int = NUM_TOKENS) -> Generation:
    prompt = all_ids("steady_mtp", "exact")[:PROMPT_LEN]
    (one,) = llm.generate([prompt], max_tokens=num_tokens, want_logits=True)
    return one


def _eager(num_tokens: int = NUM_TOKENS, **changes: Any) -> Generation:
    with LLM.in_one_process(settings(**changes)) as llm:
        return _generated(llm, num_tokens)


def _worker(llm: LLM) -> Worker:
    executor = llm.executor
    assert isinstance(executor, SoloExecutor)
    return executor.worker


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[LLM, Generation]]:
    with LLM(_compiled()) as llm:
        yield llm, _generated(llm)


def test_regions_give_the_logits_of_eager_execution_to_the_bit(
    compiled: tuple[LLM, Generation],
) -> None:
    _, one = compiled
    eager = _eager()
    assert one.token_ids == eager.token_ids
    assert one.logits is not None
    assert np.array_equal(one.logits, eager.logits)


def test_there_is_one_graph_for_each_kind_and_bucket(compiled: tuple[LLM, Generation]) -> None:
    llm, one = compiled
    layers = {kind_of_layer(role) for role in llm.config.roles}
    num_kinds = len(layers) + 1  # how they attend, and one way to route
    num_buckets = 2  # prompt steps of 16 rows, decode steps of one
    assert one.counters["graphs"] == _worker(llm).num_graphs == num_kinds * num_buckets
    assert num_kinds < 2 * llm.config.num_layers


def test_a_step_runs_two_regions_a_layer_and_counts_each_as_one_launch(
    compiled: tuple[LLM, Generation],
) -> None:
    llm, one = compiled
    num_layers = llm.config.num_layers
    assert one.counters["regions"] == 2 * num_layers
    # Per layer three launches of experts beside; embedding and head have the rest.
    eager_launches = one.counters["launches"] - one.counters["regions"]
    assert eager_launches == 3 * num_layers + 5
    eager = _eager()
    assert one.counters["launches"] < eager.counters["launches"] / 4
    # An eager step has no region: it tells none, instead of a count that nobody took.
    assert not {"regions", "graphs", "compile_events"} & eager.counters.keys()


def test_a_second_generation_compiles_nothing(compiled: tuple[LLM, Generation]) -> None:
    llm, _ = compiled
    num_graphs = _worker(llm).num_graphs
    assert llm.totals["compile_events"] == num_graphs
    again = _generated(llm)
    assert again.counters["compile_events"] == 0
    assert llm.facts()["num_compile_events"] == 0
    assert llm.totals["compile_events"] == num_graphs


def test_layers_of_a_kind_that_differ_in_their_arguments_are_refused(
    compiled: tuple[LLM, Generation],
) -> None:
    graphs = _worker(compiled[0])._graphs[0]
    (kind, bucket), *_ = graphs._graphs
    pattern = graphs._patterns[kind, bucket]
    assert graphs.find(kind, bucket, pattern) is not None
    with pytest.raises(UsageError, match="other arguments"):
        graphs.find(kind, bucket, (*pattern[:-1], not pattern[-1]))


def test_a_bucket_no_step_can_be_in_is_refused_before_it_is_compiled(
    compiled: tuple[LLM, Generation],
) -> None:
    graphs = _worker(compiled[0])._graphs[0]
    num_graphs = len(graphs)
    (kind, bucket), *_ = graphs._graphs
    assert bucket in graphs._buckets
    assert graphs.most == len(graphs.kinds) * len(graphs._buckets)
    with pytest.raises(UsageError, match=f"none of the {len(graphs._buckets)} buckets"):
        graphs.build(kind, replace(bucket, padded_rows=3), (), lambda: (), ())  # type: ignore[type-var]
    assert len(graphs) == num_graphs


def test_who_would_listen_to_ops_or_streams_is_refused(
    compiled: tuple[LLM, Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, _ = compiled
    worker = _worker(llm)
    with pytest.raises(UsageError, match="heard by nobody"):
        worker.ops.observer = lambda *_: None
    worker.ops.observer = None
    monkeypatch.setattr(worker.model, "stream_hook", lambda _, streams: streams)
    with pytest.raises(UsageError, match="between compiled regions"):
        llm.generate([[5, 6]], max_tokens=1)


def test_a_graph_too_many_is_an_error(compiled: tuple[LLM, Generation]) -> None:
    graphs = _worker(compiled[0])._graphs[0]
    graphs.kinds.add("a kind no layer is of")
    with pytest.raises(UsageError, match="do not share their graph"):
        graphs.check()
    graphs.kinds.remove("a kind no layer is of")
    graphs.check()


def test_two_ranks_compile_their_parts_and_agree_with_eager_ranks() -> None:
    with LLM.in_one_process(_compiled(numerics="quantised", cp=2)) as llm:
        one = _generated(llm, num_tokens=1)
        assert isinstance(llm.executor, LockstepExecutor)
        for worker in llm.executor.workers:
            assert worker.num_graphs == one.counters["graphs"]
    eager = _eager(num_tokens=1, numerics="quantised", cp=2)
    assert one.logits is not None
    assert np.array_equal(one.logits, eager.logits)
    assert one.counters["collectives"] == eager.counters["collectives"]
    assert one.counters["regions"] == 2 * llm.config.num_layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"numerics": "fast", "prefill": "attention"},
        {"numerics": "trn2"},
        {"numerics": "quantised", "speculative": "dspark"},
        {"numerics": "quantised", "cp": 4},
        {"numerics": "exact", "ep": 2},
    ],
)
def test_every_way_of_running_layers_is_the_same_as_graphs(changes: dict[str, Any]) -> None:
    with LLM.in_one_process(_compiled(**changes)) as llm:
        one = _generated(llm)
    eager = _eager(**changes)
    assert one.token_ids == eager.token_ids
    assert one.logits is not None
    assert eager.logits is not None
    # A prefill graph keeps rows that nobody sees: its sums have more terms, all of them 0.
    bound = 0.0 if changes.get("prefill") != "attention" else 1e-2
    assert np.abs(one.logits - eager.logits).max() <= bound


def test_without_float8_the_graphs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    right = compilers.lowered

    def noting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        left = right(graph, inputs)
        found.append((len(float8_nodes(graph)), len(float8_nodes(left.graph))))
        return left

    monkeypatch.setattr(compilers, "lowered", noting)
    prompt = all_ids("steady_mtp", "exact")[:5]
    with LLM(_compiled(numerics="quantised", compile_backend="fp8_as_uint8")) as llm:
        (one,) = llm.generate([prompt], max_tokens=1, want_logits=True)
        assert len(found) == _worker(llm).num_graphs
    with LLM(settings(numerics="quantised")) as llm:
        (eager,) = llm.generate([prompt], max_tokens=1, want_logits=True)
    assert all(before > 0 for before, _ in found), "every region quantises"
    assert all(after == 0 for _, after in found)
    assert one.logits is not None
    assert np.array_equal(one.logits, eager.logits)


def test_kernels_on_the_cpu_are_refused() -> None:
    ops = ("references.op_table:TABLE", "kernels.op_table:TABLE")
    with pytest.raises(UsageError, match="cannot hold kernels on the CPU"):
        LLM(_compiled(numerics="fast", ops=ops))


def test_without_a_cpp_compiler_inductor_is_missing_and_the_remedies_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import cpp_builder, exc

    def nobody() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", nobody)
    with pytest.raises(MissingEvidenceError, match="install g\\+\\+") as caught:
        LLM(_compiled(compile_backend=""))
    assert "--enforce-eager" in str(caught.value)
    assert compilers.require_compiler("aten", "cpu") == "aten"


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [("tvm", "cpu", "choose inductor, aten"), ("inductor", "neuron", "takes 'fp8_as_uint8' alone")],
)
def test_a_compiler_that_is_not_there_is_refused(name: str, device: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compilers.require_compiler(name, device)


def test_a_compiler_without_regions_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing is compiled with enforce_eager"):
        settings(compile_backend="aten")


@pytest.mark.slow
def test_a_rank_that_compiles_is_not_taken_for_silent() -> None:
    # Nine graphs a bucket take longer to capture than a rank may be silent.
    limited = {"cp": 2, "time_limit_s": 4.0, "numerics": "quantised"}
    with LLM(_compiled(**limited)) as llm:
        one = _generated(llm)
    with LLM(settings(**limited)) as llm:
        eager = _generated(llm)
        kinds = {kind_of_layer(role) for role in llm.config.roles}
    assert one.logits is not None
    assert np.array_equal(one.logits, eager.logits)
    assert one.counters["graphs"] == 2 * (len(kinds) + 1)
