"""The server over ranks that have batches of their own: `serve --cp 1 --ep N`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.llm import LLM
from tests.engine.oracle import all_ids, settings
from tests.engine.serve.running import RunningServer, running
from tests.engine.serve.test_real_engine import served_ids

_IDS = all_ids("long", "exact")
_PROMPTS = [_IDS[:12], _IDS[4:9], _IDS[20:37], _IDS[7:8]]


def _served_together(server: RunningServer) -> list[list[int]]:
    with ThreadPoolExecutor(len(_PROMPTS)) as pool:
        return list(pool.map(lambda prompt: served_ids(server, prompt, 5), _PROMPTS))


def test_requests_over_two_batches_get_the_tokens_of_one_rank() -> None:
    with LLM(settings("long")) as llm:
        expected = [list(one.token_ids) for one in llm.generate(_PROMPTS, max_tokens=5)]
    engine = LLM.in_one_process(settings("long", ep=2))
    with running(engine) as server:
        assert _served_together(server) == expected
        server.wait_until(lambda: server.bridge.num_in_flight == 0)
        pages = 2 * (engine.limits.num_pages - 1)
        assert server.metric("neuron_harness_kv_pages") == pages
        assert engine.scheduler.pool.num_free_pages == pages
    # Four requests of unlike length: both batches had some.
    assert all(worker.state.rings[0].any() for worker in engine.executor.workers)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_processes_serve_two_batches() -> None:
    with LLM(settings("long")) as llm:
        expected = [list(one.token_ids) for one in llm.generate(_PROMPTS, max_tokens=5)]
    with running(LLM(settings("long", ep=2))) as server:
        assert _served_together(server) == expected
