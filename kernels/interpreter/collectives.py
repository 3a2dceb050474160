"""`nki.collectives`: named, with their signatures, and refused.

The official simulator does not run them either; use torch.distributed between kernels.
"""

from __future__ import annotations

from typing import Any, NoReturn

from kernels.interpreter.errors import refuse

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]


class ReplicaGroup:
    """Groups of ranks, as in ReplicaGroup([[0, 1], [2, 3]])."""

    def __init__(self, *groups: Any) -> None:
        self.groups = groups


def _refused(name: str) -> NoReturn:
    refuse(
        "",
        "called",
        "collectives are not executed by this interpreter",
        "use torch.distributed between kernels",
        instruction=f"nki.collectives.{name}",
    )


def all_reduce(
    srcs: Any, dsts: Any, replica_group: Any, op: Any, priority: Any = None, name: Any = None
) -> None:
    """Refused."""
    _refused("all_reduce")


def all_gather(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    collective_dim: Any,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("all_gather")


def all_gather_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("all_gather_v")


def reduce_scatter(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    collective_dim: Any,
    op: Any,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("reduce_scatter")


def all_to_all(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    collective_dim: Any,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("all_to_all")


def all_to_all_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("all_to_all_v")


def collective_permute(
    srcs: Any, dsts: Any, source_target_pairs: Any, priority: Any = None, name: Any = None
) -> None:
    """Refused."""
    _refused("collective_permute")


def collective_permute_implicit(
    srcs_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    channel_ids: Any = [0],  # noqa: B006 - the public signature
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("collective_permute_implicit")


def collective_permute_implicit_reduce(
    srcs0_by_channel: Any,
    srcs1_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    op: Any,
    channel_ids: Any = [0],  # noqa: B006 - the public signature
    priority: Any = None,
    name: Any = None,
) -> None:
    """Refused."""
    _refused("collective_permute_implicit_reduce")


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Any, replica_group: Any, channel_id: Any = 0, name: Any = None
) -> None:
    """Refused."""
    _refused("collective_permute_implicit_current_processing_rank_id")


def rank_id(name: Any = None) -> None:
    """Refused."""
    _refused("rank_id")
