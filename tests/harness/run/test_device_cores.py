"""Which NeuronCores are visible, and that no two workers share one."""

from __future__ import annotations

import pytest

from harness.core.errors import MissingEvidenceError, UsageError
from harness.run.device_cores import core_environments, parse_cores, visible_cores


@pytest.mark.parametrize(
    ("text", "cores"), [("3", (3,)), ("0-3", (0, 1, 2, 3)), ("0-1, 6,8-9", (0, 1, 6, 8, 9))]
)
def test_cores_are_read_as_the_runtime_reads_them(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores
    assert visible_cores({"NEURON_RT_VISIBLE_CORES": text}) == cores


@pytest.mark.parametrize("text", ["a", "1-", "0,0", "3-1", ","])
def test_what_is_no_list_of_cores_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="NEURON_RT_VISIBLE_CORES"):
        parse_cores(text)


def test_each_worker_gets_one_core_and_none_gets_two() -> None:
    given = core_environments(0, (2, 3, 7))
    assert [environment["NEURON_RT_VISIBLE_CORES"] for environment in given] == ["2", "3", "7"]
    assert len(core_environments(2, (2, 3, 7))) == 2
    with pytest.raises(UsageError, match="--jobs 4: 3 NeuronCores"):
        core_environments(4, (2, 3, 7))


def test_a_host_without_cores_cannot_judge() -> None:
    with pytest.raises(MissingEvidenceError, match="no NeuronCore"):
        visible_cores({"PATH": "/usr/bin"})
