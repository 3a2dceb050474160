"""Judging a selection: ids beyond the cut's value must match, ids within it may be any of it.

A router's scores are sums, so fp32 and fp64 may order two experts differently that lie within
rounding of each other. Such a pair is a tie class: an id of it may stand for another. Scores that
are equal in exact arithmetic keep the sheet's promise, the smaller id.

The scores are computed here from the op's definition (model.md §2.8), not by the reference; where
the two disagree about a golden weight nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from harness.core.case import Tolerance
from harness.core.results import OutputErrors
from harness.run.compare import NO_BUDGET, compare_exact, compare_within_budget
from harness.run.inputs import Arguments

__all__ = ["RouterSelection", "selection_faults"]

# fp32 sums of d products differ from exact by about sqrt(d) * 2^-24 of their size, in either
# direction and in any order; four times what one order shows covers the others.
_UNCERTAINTY_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class RouterSelection:
    """Scores of one routing.

    Attributes:
        ranking: fp64 biased scores [T, E].
        scores: fp64 unbiased scores [T, E].
        uncertainty: per row [T, 1], how far a correct fp32 score may lie from `ranking`.
    """

    ranking: torch.Tensor
    scores: torch.Tensor
    uncertainty: torch.Tensor
    normalise: bool
    route_scale: float

    @classmethod
    def of(cls, arguments: Arguments) -> RouterSelection:
        """From the arguments of a `router` call."""
        values = arguments.values
        exact = _scores(arguments, torch.float64)
        single = _scores(arguments, torch.float32).double()
        bias = values["bias"].double()
        spread = (single - exact).abs().amax(1, keepdim=True) if exact.shape[1] else exact
        rounding = torch.finfo(torch.float32).eps * (exact + bias).abs().amax(1, keepdim=True)
        return cls(
            exact + bias,
            exact,
            _UNCERTAINTY_FACTOR * (spread + rounding),
            bool(values["normalise"]),
            float(values["route_scale"]),
        )

    def compare(
        self,
        outputs: tuple[torch.Tensor, ...],
        golden: tuple[torch.Tensor, ...],
        baseline: tuple[torch.Tensor, ...],
        tolerances: Mapping[str, Tolerance],
    ) -> tuple[OutputErrors, ...]:
        """Ids as sets with tie classes, weights against the golden of the same ids."""
        ids, weights = outputs
        id_errors = compare_exact("expert_ids", _ascending(ids), _ascending(golden[0]))
        faults = selection_faults(self.ranking, ids, self.uncertainty)
        num_faults = int(faults.sum())
        id_errors = replace(
            id_errors,
            num_mismatched=num_faults,
            budget_ratio=NO_BUDGET if num_faults else 0.0,
        )
        if num_faults:
            row = int(faults.to(torch.uint8).argmax())
            id_errors = _pointing_at(id_errors, row, ids, golden[0])
            ids = golden[0]
        budget = compare_within_budget(
            "expert_weights",
            weights,
            self.weights_of(ids),
            self._baseline_of(ids, baseline),
            tolerances["expert_weights"],
        )
        return id_errors, budget

    def weights_of(self, ids: torch.Tensor) -> torch.Tensor:
        """Golden weights [T, k] of the given selection."""
        weights = self.scores.gather(1, ids.long().clamp(0, self.scores.shape[1] - 1))
        if self.normalise and ids.shape[1] > 1:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
        return weights * self.route_scale

    def _baseline_of(
        self,
        ids: torch.Tensor,
        baseline: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        """The baseline's own error, carried over to the order of the candidate's ids."""
        order = torch.argsort(ids, dim=1)
        baseline_order = torch.argsort(baseline[0], dim=1)
        error = (baseline[1].double() - self.weights_of(baseline[0])).gather(1, baseline_order)
        return self.weights_of(ids) + torch.empty_like(error).scatter_(1, order, error)

    def disagreement(self, golden: tuple[torch.Tensor, ...]) -> str:
        """Where the reference's golden is not what the definition says; empty if nowhere."""
        if bool(selection_faults(self.ranking, golden[0], self.uncertainty).any()):
            return "the reference's expert ids are not the best of their scores"
        distance = (golden[1].double() - self.weights_of(golden[0])).abs()
        if bool((distance > 1e-9 * golden[1].double().abs() + 1e-300).any()):
            return "the reference's expert weights are not those of its ids"
        return ""


def selection_faults(
    ranking: torch.Tensor, ids: torch.Tensor, uncertainty: torch.Tensor
) -> torch.Tensor:
    """Which rows [T] hold a wrong top-k set.

    Args:
        ranking: fp64 scores [T, n].
        ids: the selection [T, k].
        uncertainty: [T, 1]; entries closer than this to the cut may stand for one another,
            unless they are exactly equal: then the smaller id must be taken first.
    """
    num_entries, top_k = ranking.shape[1], ids.shape[1]
    in_range = ((ids >= 0) & (ids < num_entries)).all(1)
    chosen = torch.zeros_like(ranking, dtype=torch.bool)
    chosen.scatter_(1, ids.long().clamp(0, num_entries - 1), True)
    distinct = chosen.sum(1) == top_k
    cut = ranking.sort(dim=1, descending=True).values[:, top_k - 1 : top_k]
    must = ranking > cut + uncertainty
    may = ranking >= cut - uncertainty
    in_class = (chosen | ~must).all(1) & (may | ~chosen).all(1)
    return ~(in_range & distinct & in_class & _lowest_first(ranking, chosen))


def _lowest_first(ranking: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Per row: of exactly equal scores no later one is chosen while an earlier one is not."""
    order = torch.argsort(ranking, dim=1, stable=True)
    scores, taken = ranking.gather(1, order), chosen.gather(1, order)
    equal_neighbours = scores[:, 1:] == scores[:, :-1]
    skipped = equal_neighbours & taken[:, 1:] & ~taken[:, :-1]
    return ~skipped.any(1)


def _scores(arguments: Arguments, dtype: torch.dtype) -> torch.Tensor:
    """sqrt(softplus(x @ weight^T / gate_temp)) [T, E]."""
    values = arguments.values
    logits: torch.Tensor = values["x"].to(dtype) @ values["weight"].to(dtype).T
    logits = logits / values["gate_temp"]
    return (logits.clamp(min=0) + torch.log1p(torch.exp(-logits.abs()))).sqrt()


def _ascending(ids: torch.Tensor) -> torch.Tensor:
    return ids.sort(dim=1).values


def _pointing_at(
    errors: OutputErrors, row: int, ids: torch.Tensor, golden: torch.Tensor
) -> OutputErrors:
    """Name the first element of the row that differs from the golden as a set."""
    found, wanted = _ascending(ids)[row], _ascending(golden)[row]
    column = int((found != wanted).to(torch.uint8).argmax())
    return replace(
        errors,
        worst_slice=(row,),
        worst_index=(row, column),
        worst_kernel_value=float(found[column]),
        worst_golden_value=float(wanted[column]),
    )
