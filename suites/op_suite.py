"""What a file of suites/ops says: the cases of an op, their tiers, and the budgets they meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.case import Case, Tolerance
from harness.core.errors import UsageError, VacuousError
from harness.core.suggest import near_names

__all__ = ["DEVICE", "TIERS", "OpSuite"]

# Each tier contains the ones before it.
TIERS = ("smoke", "default", "full")
# Chosen cases of any tier: each costs a compile on a device.
DEVICE = "device"


@dataclass(frozen=True, slots=True)
class OpSuite:
    """The cases of one stem (one op, or a quantiser and its inverse).

    Attributes:
        stem: file stem of the sheet.
        cases: in file order; ids are unique.
        tiers: case id -> the smallest tier it belongs to.
        tolerances: op -> output -> budget, for every output judged by one.
        device: ids of the cases of the tier "device", one compile each.
    """

    stem: str
    cases: tuple[Case, ...]
    tiers: Mapping[str, str]
    tolerances: Mapping[str, Mapping[str, Tolerance]]
    device: tuple[str, ...] = ()

    def cases_of(self, tier: str) -> tuple[Case, ...]:
        """Every case of `tier` and of the tiers it contains; "device" contains no other.

        Raises:
            UsageError: unknown tier.
            VacuousError: the tier holds no case.
        """
        if tier not in (*TIERS, DEVICE):
            raise UsageError(f"tier {tier!r} is not known{near_names(tier, (*TIERS, DEVICE))}")
        if tier == DEVICE:
            cases = tuple(case for case in self.cases if case.case_id in self.device)
        else:
            included = TIERS[: TIERS.index(tier) + 1]
            cases = tuple(case for case in self.cases if self.tiers[case.case_id] in included)
        if not cases:
            raise VacuousError(f"suite {self.stem}: tier {tier} holds no case")
        return cases
