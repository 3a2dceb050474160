"""Prometheus metrics of one server, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.serve.snapshot import EngineSnapshot

__all__ = ["CONTENT_TYPE", "ServerMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From a tiny model on a CPU to 66 s of TTFT at 8192 tokens on the port's machine.
_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
_TPOT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)


class ServerMetrics:
    """Counters and histograms that calls feed, and the engine's snapshot read at each scrape."""

    def __init__(
        self,
        snapshot: Callable[[], EngineSnapshot],
        queued: Callable[[], int],
        totals: Callable[[], Mapping[str, float]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(snapshot, queued, totals))
        self.requests = Counter(
            "neuron_harness_requests",
            "HTTP requests by endpoint and status",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self.sequences = Counter(
            "neuron_harness_sequences",
            "Sequences that ended, by reason: stop, length, abort or error",
            ["reason"],
            registry=self._registry,
        )
        self.prompt_tokens = Counter(
            "neuron_harness_prompt_tokens", "Prompt tokens taken in", registry=self._registry
        )
        self.generation_tokens = Counter(
            "neuron_harness_generation_tokens", "Tokens generated", registry=self._registry
        )
        self.ttft = Histogram(
            "neuron_harness_time_to_first_token_seconds",
            "From the request to its first token, in the server",
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self.tpot = Histogram(
            "neuron_harness_time_per_output_token_seconds",
            "(last token - first token) / (n - 1) of a sequence, in the server",
            buckets=_TPOT_BUCKETS_S,
            registry=self._registry,
        )

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(
        self,
        snapshot: Callable[[], EngineSnapshot],
        queued: Callable[[], int],
        totals: Callable[[], Mapping[str, float]],
    ) -> None:
        self._snapshot = snapshot
        self._queued = queued
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Everything read off one snapshot."""
        state = self._snapshot()
        gauges = {
            "sequences_running": ("Sequences that hold a slot", state.num_running),
            "sequences_waiting": (
                "Sequences accepted and not started",
                max(0, self._queued() - state.num_running),
            ),
            "kv_pages": ("KV pages of the pool", state.num_pages),
            "kv_pages_used": ("KV pages in use", state.num_pages - state.num_free_pages),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"neuron_harness_{name}", text, value=value)
        yield CounterMetricFamily("neuron_harness_steps", "Engine steps", value=state.num_steps)
        counts = CounterMetricFamily(
            "neuron_harness_engine_counts",
            "What the engine's steps counted: collectives, launches, overflows, compile events",
            labels=["name"],
        )
        for name, count in sorted(self._totals().items()):
            counts.add_metric([name], count)
        yield counts
        yield CounterMetricFamily(
            "vllm:num_preemptions",
            "Requests sent back for want of KV pages",
            value=state.num_preemptions,
        )
        # These exact names are what vLLM's benchmark client reads.
        counters = {
            "num_drafts": ("Draft blocks verified", state.num_drafts),
            "num_draft_tokens": ("Draft tokens verified", state.num_draft_tokens),
            "num_accepted_tokens": ("Draft tokens accepted", sum(state.accepted_by_place)),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"vllm:spec_decode_{name}", text, value=value)
        by_place = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted at each place of a block",
            labels=["position"],
        )
        for place, count in enumerate(state.accepted_by_place):
            by_place.add_metric([str(place)], count)
        yield by_place
