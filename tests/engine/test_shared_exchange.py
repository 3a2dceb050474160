"""Collectives through shared memory: all ranks' parts; ranks that do not belong together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from engine.parallel import shared_exchange
from engine.parallel.shared_exchange import SharedExchange, create_exchange_segment
from engine.parallel.shared_segment import SharedSegment

T = TypeVar("T")


def _ends(size: int, limit_s: float = 20.0) -> list[SharedExchange]:
    segment = create_exchange_segment(size)
    opened = [SharedSegment.open(segment.path) for _ in range(size)]
    segment.forget()
    return [SharedExchange(one, rank, size, limit_s) for rank, one in enumerate(opened)]


def _together(task: Callable[[int], T], size: int) -> list[T | BaseException]:
    """task(rank) of every rank at once; what each returned or raised."""
    results: list[T | BaseException] = [RuntimeError("did not end")] * size

    def work(rank: int) -> None:
        try:
            results[rank] = task(rank)
        except RuntimeError as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4)])
def test_every_rank_gets_every_part(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ends = _ends(3)
    parts = [
        (torch.arange(15)[: max(1, torch.Size(shape).numel())].sum() + rank).to(dtype).expand(shape)
        for rank in range(3)
    ]
    found = _together(lambda rank: ends[rank].gather(parts[rank].contiguous(), "x"), 3)
    for gathered in found:
        assert isinstance(gathered, list)
        assert all(map(torch.equal, gathered, parts))


def test_ranks_may_run_ahead_by_no_more_than_what_is_unread() -> None:
    """Many rounds without a pause: a slot filled too soon would show in a sum."""
    ends = _ends(4)

    def work(rank: int) -> list[float]:
        return [
            sum(part.item() for part in ends[rank].gather(torch.tensor([rank + 10.0 * n]), "x"))
            for n in range(300)
        ]

    expected = [6 + 40.0 * number for number in range(300)]
    assert _together(work, 4) == [expected] * 4


@pytest.mark.parametrize("num_values", [1024, 1025, 4096, 5000])
def test_a_part_larger_than_a_slot_goes_in_rounds(
    num_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_exchange, "_SLOTS_BYTES", 2 * 2 * 8192)
    ends = _ends(2)
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(num_values, dtype=torch.float64, generator=generator) for _ in range(2)]

    def work(rank: int) -> list[torch.Tensor]:
        first = ends[rank].gather(parts[rank], "x")
        ends[rank].gather(torch.zeros(3), "y")
        return first if num_values > 1024 else ends[rank].gather(parts[rank], "x")

    for gathered in _together(work, 2):
        assert isinstance(gathered, list)
        assert all(map(torch.equal, gathered, parts))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("another", torch.zeros(4)),
        ("same", torch.zeros(5)),
        ("same", torch.zeros(4, dtype=torch.float64)),
    ],
)
def test_ranks_in_different_collectives_are_told_so(name: str, part: torch.Tensor) -> None:
    ends = _ends(2)
    first, second = _together(
        lambda rank: ends[rank].gather(*((part, name) if rank else (torch.zeros(4), "same"))), 2
    )
    assert str(first) == "same: ranks [1] are in another collective"
    assert str(second) == f"{name}: ranks [0] are in another collective"


def test_ranks_that_do_not_come_are_named_after_the_limit() -> None:
    ends = _ends(3, limit_s=0.2)
    first, second, _ = _together(
        lambda rank: ends[rank].gather(torch.zeros(1), "moe.3") if rank < 2 else [], 3
    )
    assert str(first) == str(second) == "moe.3: ranks [2] did not come in 0.2 s"


def _late_by(
    seconds: float, ends: list[SharedExchange], note: Callable[[int], object]
) -> list[object]:
    """What two ranks get where the second comes late, having noted something before."""

    def work(rank: int) -> list[float]:
        if rank:
            note(rank)
            time.sleep(seconds)
        return [part.item() for part in ends[rank].gather(torch.tensor([rank + 1.0]), "x")]

    return list(_together(work, 2))


def test_a_rank_that_compiles_is_waited_for_beyond_the_limit() -> None:
    ends = _ends(2, limit_s=0.2)
    assert _late_by(0.8, ends, lambda rank: ends[rank].note_compilation()) == [[1.0, 2.0]] * 2


def test_what_was_said_is_taken_back_with_the_next_round() -> None:
    ends = _ends(2, limit_s=0.2)
    _late_by(0.0, ends, lambda rank: ends[rank].note_compilation())
    first, _ = _late_by(0.8, ends, lambda _: None)
    assert str(first) == "x: ranks [1] did not come in 0.2 s"


def test_only_a_rank_that_is_missing_lengthens_the_limit() -> None:
    ends = _ends(3, limit_s=0.2)
    ends[1].note_compilation()
    first, second, _ = _together(
        lambda rank: ends[rank].gather(torch.zeros(1), "moe.3") if rank < 2 else [], 3
    )
    assert str(first) == str(second) == "moe.3: ranks [2] did not come in 0.2 s"


def test_a_rank_that_compiles_for_too_long_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_exchange, "COMPILE_LIMIT_S", 0.3)
    ends = _ends(2, limit_s=0.2)
    start = time.monotonic()
    first, _ = _late_by(2.0, ends, lambda rank: ends[rank].note_compilation())
    assert str(first) == "x: ranks [1] did not come in 0.2 s"
    assert time.monotonic() - start >= 0.5
