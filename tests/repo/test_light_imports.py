"""What an import must not drag in, each tried in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.repo.sources import ROOT, module_name, package_modules

HEAVY = ("nki", "neuronxcc", "torch_neuronx", "pandas", "matplotlib", "transformers")


def _modules_of(package: str) -> list[str]:
    folder = ROOT / package.replace(".", "/")
    return [module_name(path) for path in package_modules() if path.is_relative_to(folder)]


def _loaded_after(modules: list[str], watched: tuple[str, ...]) -> list[str]:
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {watched!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("modules", "watched"),
    [
        pytest.param(_modules_of("harness.core"), (*HEAVY, "torch"), id="harness.core"),
        pytest.param(["harness"], (*HEAVY, "torch"), id="harness"),
        pytest.param(["harness.cli.main"], (*HEAVY, "torch"), id="harness.cli.main"),
        pytest.param(["kernels"], (*HEAVY, "torch"), id="kernels"),
        pytest.param(["kernels.catalog"], (*HEAVY, "torch"), id="kernels.catalog"),
        pytest.param(["engine"], HEAVY, id="engine"),
        pytest.param(["references.op_table"], HEAVY, id="references"),
        pytest.param(_modules_of("suites"), (*HEAVY, "torch"), id="suites"),
        pytest.param(_modules_of("tiny_checkpoints"), (*HEAVY, "torch"), id="tiny_checkpoints"),
    ],
)
def test_an_import_stays_light(modules: list[str], watched: tuple[str, ...]) -> None:
    assert _loaded_after(modules, watched) == []


def test_the_command_line_is_built_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from harness.cli.main import build_app; build_app()\n"
        f"print(*[name for name in {(*HEAVY, 'torch')!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_heavy_import_would_be_seen() -> None:
    assert _loaded_after(["references.op_table"], ("torch",)) == ["torch"]
