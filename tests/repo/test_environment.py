"""No accelerator stack for CUDA is pulled in, and constraints pin what the checks run with."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest
import torch

from tests.repo.sources import ROOT

FOREIGN = re.compile(
    r"^(nvidia-|cuda-|triton|pytorch-triton|cupy|tensorflow|jaxlib)", re.IGNORECASE
)


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.partition("==")[::2] for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def test_no_cuda_package_is_installed() -> None:
    if torch.version.cuda is not None:
        pytest.skip("an active environment brought its own CUDA build of torch")
    names = {dist.metadata["Name"] for dist in importlib.metadata.distributions()}
    assert {name for name in names if name and FOREIGN.match(name)} == set()


def test_no_cuda_package_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *_constraints()]
    for extra in project["optional-dependencies"].values():
        asked += extra
    assert [name for name in asked if FOREIGN.match(name)] == []


def test_every_dependency_is_pinned_within_its_own_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    constraints = {_canonical(name): version for name, version in _constraints().items()}
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name, _, lower = requirement.partition(">=")
        pinned = constraints[_canonical(name)]
        assert _numbers(pinned) >= _numbers(lower), requirement


def test_the_neuron_extra_cannot_be_met_by_the_public_placeholders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = dict(item.split(">=") for item in project["optional-dependencies"]["neuron"])
    assert _numbers(bounds["nki"]) >= (0, 6)
    assert set(bounds) == {"nki", "neuronx-cc", "torch-neuronx"}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
