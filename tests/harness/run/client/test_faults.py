"""Every way a server may go wrong has one documented outcome."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from harness.core.errors import MissingEvidenceError, UsageError
from harness.core.latency import failure_of, latency_of
from harness.run.client.completion import CompletionClient, CompletionRequest
from harness.run.client.connection import parse_address
from tests.fakes.fault_server import NUM_TOKENS, PROMPT_LEN, SCRIPTS, fault_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fault_server() as url:
        yield url


def asked(url: str, fault: str, stall_s: float = 10.0) -> dict[str, Any]:
    client = CompletionClient(url, model=fault, stall_s=stall_s)
    return asyncio.run(client.complete(CompletionRequest([5] * PROMPT_LEN, NUM_TOKENS)))


@pytest.mark.parametrize(
    ("fault", "num_stamps", "count_source"),
    [
        ("none", 4, "usage"),
        ("role_only_first", 4, "usage"),
        ("bundled_tokens", 2, "usage"),
        ("bundled_and_named", 4, "usage"),
        ("bundled_with_running_usage", 4, "usage"),
        ("late_usage", 4, "usage"),
        ("missing_usage", 4, "chunks"),
        ("extra_finish_chunk", 4, "usage"),
        ("empty_last_token", 4, "usage"),
        ("crlf", 4, "usage"),
        ("no_space", 4, "usage"),
        ("comments", 4, "usage"),
        ("split_anywhere", 4, "usage"),
    ],
)
def test_what_only_looks_odd_is_measured(
    url: str, fault: str, num_stamps: int, count_source: str
) -> None:
    record = asked(url, fault)
    assert failure_of(record) is None
    assert len(record["token_ns"]) == num_stamps
    assert record["count_source"] == count_source
    assert record["num_tokens"] == 4
    assert record["finish_reason"] == "length"
    assert record["has_loose_counts"] is (fault == "bundled_tokens")
    assert record["prompt_len"] == (None if fault == "missing_usage" else PROMPT_LEN)
    latency = latency_of(record)
    first, last = record["token_ns"][0], record["token_ns"][-1]
    assert latency.tpot_ms == pytest.approx((last - first) / 1e6 / 3)
    assert latency.num_tokens == 4


def test_an_extra_finish_chunk_adds_no_gap(url: str) -> None:
    assert len(latency_of(asked(url, "extra_finish_chunk")).itl_ms) == 3


def test_bundles_that_name_their_tokens_give_gaps_per_token(url: str) -> None:
    latency = latency_of(asked(url, "bundled_and_named"))
    assert len(latency.itl_ms) == 1
    assert len(latency.itl_per_token_ms) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("mid_stream_close", "the connection ended mid-answer"),
        ("closed_at_once", "the connection ended mid-answer"),
        ("http_500", "HTTP 500: broken"),
        ("no_http", "the answer is not HTTP/1.1"),
        ("malformed_json", "malformed event"),
        ("not_an_object", "malformed event"),
        ("too_few", "2 tokens where 4 were asked for"),
        ("wrong_prompt_length", "prompt of 9 tokens where 3 were sent"),
        ("no_finish_reason", "no finish reason"),
        ("no_done", "the stream ended without [DONE]"),
        ("no_token", "no token"),
        ("error_event", "the server said: rank 3 died"),
    ],
)
def test_what_is_wrong_is_a_failure_that_says_so(url: str, fault: str, message: str) -> None:
    failure = failure_of(asked(url, fault))
    assert failure is not None
    assert message in failure


def test_a_stall_ends_after_the_limit_and_not_before(url: str) -> None:
    record = asked(url, "stall", stall_s=0.3)
    assert failure_of(record) == "no byte within 0.3 s"
    assert len(record["token_ns"]) == 2
    assert asked(url, "stall", stall_s=10.0)["error"] == "the stream ended without [DONE]"


def test_every_script_of_the_fault_server_is_judged_here() -> None:
    marks = [
        mark
        for test in (
            test_what_only_looks_odd_is_measured,
            test_what_is_wrong_is_a_failure_that_says_so,
        )
        for mark in test.pytestmark  # type: ignore[attr-defined]
    ]
    judged = {case[0] for mark in marks for case in mark.args[1]}
    assert set(SCRIPTS) <= judged


def test_nobody_listening_is_a_failed_request_and_no_server_to_ask() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    assert "cannot connect to 127.0.0.1" in str(failure_of(asked(url, "none")))
    with pytest.raises(MissingEvidenceError, match="cannot connect"):
        asyncio.run(CompletionClient(url).facts())


def test_a_server_without_a_model_cannot_be_measured(url: str) -> None:
    with pytest.raises(MissingEvidenceError, match="no model listed"):
        asyncio.run(CompletionClient(url).facts())


@pytest.mark.parametrize("text", ["localhost:8000", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_url_is_the_users_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://h", ("h", 80, "")),
        ("https://h/", ("h", 443, "")),
        ("http://h:81/v1", ("h", 81, "")),
        ("http://h/x/v1/", ("h", 80, "/x")),
        ("http://[::1]:9", ("::1", 9, "")),
    ],
)
def test_base_urls_come_in_several_forms(text: str, expected: tuple[str, int, str]) -> None:
    address = parse_address(text)
    assert (address.host, address.port, address.prefix) == expected
