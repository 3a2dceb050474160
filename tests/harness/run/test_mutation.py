"""Mutants are drawn by seed, judged by the suite, and counted without equivalents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from harness.core.errors import VacuousError
from harness.core.op_table import OpTable
from harness.run.mutation import Mutant, MutantVerdict, caught_share, run_mutants, sampled
from harness.run.parity_targets import ParityTargets
from references.op_table import TABLE
from tests.harness.run.budgets import TOLERANCES
from tests.harness.run.problems import small_case

CHANGES = ("nothing", "one row", "one ulp", "hang", "die")
_active = ""


def _mutable_rms_norm(x: Any, *rest: Any, numerics: Any) -> torch.Tensor:
    y: torch.Tensor = TABLE.rms_norm(x, *rest, numerics=numerics)
    match _active:
        case "one row":
            y[0] = 0
        case "one ulp":
            y.view(torch.int16)[3, int(y[3].abs().argmin())] ^= 1
        case "hang":
            torch.futures.Future().wait()
        case "die":
            raise SystemExit(3)
    return y


class FakeHook:
    """Offers one mutant a change and applies it to `_mutable_rms_norm`."""

    def recorded(self, op: str, run: Callable[[], None]) -> tuple[Mutant, ...]:
        run()
        return tuple(Mutant(op, "fake.py:1", "fake", change) for change in CHANGES)

    @contextmanager
    def applied(self, mutant: Mutant) -> Iterator[None]:
        global _active
        _active = mutant.change
        try:
            yield
        finally:
            _active = ""


HOOK = FakeHook()
MUTABLE = OpTable({"rms_norm": _mutable_rms_norm}, fp8_max=240)


def _mutants(op: str, number: int) -> list[Mutant]:
    return [Mutant(op, f"k.py:{line}", "dma_copy", "drop") for line in range(number)]


def test_a_draw_is_its_seeds_and_takes_ops_in_turn() -> None:
    pool = [*_mutants("long", 100), *_mutants("short", 3)]
    first = sampled(pool, 10, seed=1)
    assert first == sampled(pool, 10, seed=1)
    assert first != sampled(pool, 10, seed=2)
    assert sum(mutant.op == "short" for mutant in first) == 3
    assert len(set(first)) == 10
    assert len(sampled(pool, 1000, seed=1)) == 103


def test_equivalents_do_not_count() -> None:
    mutants = _mutants("op", 4)
    outcomes = ("CAUGHT", "CAUGHT", "SURVIVED", "EQUIVALENT")
    verdicts = [MutantVerdict(m, o) for m, o in zip(mutants, outcomes, strict=True)]
    assert caught_share(verdicts) == pytest.approx(2 / 3)
    with pytest.raises(VacuousError, match="no mutant changes any output"):
        caught_share(verdicts[3:])


def test_each_kind_of_mutant_gets_its_outcome() -> None:
    targets = ParityTargets("references.op_table:TABLE", f"{__name__}:MUTABLE")
    from harness.run.isolate import Limits

    verdicts = run_mutants(
        [small_case("rms_norm"), small_case("rms_norm", seed=1)],
        TOLERANCES,
        targets,
        f"{__name__}:HOOK",
        count=10,
        seed=0,
        limits=Limits(time_limit_s=3.0),
    )
    outcomes = {verdict.mutant.change: (verdict.outcome, verdict.status) for verdict in verdicts}
    assert outcomes == {
        "nothing": ("EQUIVALENT", ""),
        "one row": ("CAUGHT", "OUT_OF_TOLERANCE"),
        "one ulp": ("SURVIVED", ""),  # an ulp of a row's smallest value is within any budget
        "hang": ("CAUGHT", "TIMEOUT"),
        "die": ("CAUGHT", "RUN_ERROR"),
    }


def test_a_suite_that_fails_without_mutation_scores_nothing() -> None:
    targets = ParityTargets("references.op_table:TABLE", "tests.harness.run.unruly:BAD_TABLE")
    with pytest.raises(VacuousError, match="without any mutation"):
        run_mutants([small_case("rope")], TOLERANCES, targets, f"{__name__}:HOOK", count=5, seed=0)
