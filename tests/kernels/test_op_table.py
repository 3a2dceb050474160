"""The table, the catalog and the sources of kernels against the contracts they promise."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.op_table import OpTable
from harness.core.ops import OP_SHEET
from kernels.catalog import KERNELS
from kernels.op_table import TABLE

_FOLDER = Path(__file__).parents[2] / "kernels"
_SOURCES = sorted(_FOLDER.glob("*.py"))
_BANNED = {
    "divide",
    "mod",
    "fmod",
    "abs_max",
    "abs_min",
    "activate2",
    "exponential",
    "nc_matmul_mx",
    "quantize_mx",
    "rand2",
    "indirect",
    "affine_range",
    "sequential_range",
    "static_range",
    "dynamic_range",
}
_CONTRACT_WORDS = ("Dimensions:", "Layouts:", "Accumulation:", "Expected error:", "Tiling", "efuse")


def test_the_table_is_a_240_table_of_sheet_ops() -> None:
    assert isinstance(TABLE, OpTable)
    assert TABLE.fp8_max == 240
    assert set(TABLE.ops) == set(KERNELS)
    assert {
        "rms_norm",
        "swiglu",
        "linear_fp8",
        "linear_fp4_grouped",
        "sparse_attention",
        "index_scores",
        "vocab_argmax",
    } <= set(TABLE.ops)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_an_op_has_the_parameters_of_its_sheet_row(name: str) -> None:
    parameters = inspect.signature(TABLE.ops[name]).parameters
    positional = tuple(
        key for key, value in parameters.items() if value.kind is value.POSITIONAL_OR_KEYWORD
    )
    assert positional == OP_SHEET[name].parameter_names
    assert parameters["numerics"].kind is inspect.Parameter.KEYWORD_ONLY
    assert KERNELS[name].startswith(f"kernels.{OP_SHEET[name].stem}_nki:")


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*_nki.py")), ids=lambda path: path.stem)
def test_a_kernels_docstring_is_a_contract(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    missing = [word for word in _CONTRACT_WORDS if word not in text]
    assert not missing


def kernel_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions that run on the device: every one that uses nisa or nl, and what jit decorates."""
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(n, ast.Name) and n.id in ("nisa", "nl") for n in ast.walk(node))
    ]


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: path.stem)
def test_kernel_code_stays_in_the_subset_of_the_older_parser(path: Path) -> None:
    for function in kernel_functions(ast.parse(path.read_text())):
        assert not function.args.kwonlyargs, function.name
        assert not function.args.vararg, function.name
        for node in ast.walk(function):
            where = f"{function.name}:{getattr(node, 'lineno', 0)}"
            assert not isinstance(
                node,
                ast.Lambda | ast.Try | ast.With | ast.Yield | ast.ListComp | ast.GeneratorExp,
            ), where
            if node is not function:
                assert not isinstance(node, ast.FunctionDef | ast.ClassDef), where
            if isinstance(node, ast.Compare):
                assert not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops), where


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: path.stem)
def test_instructions_are_called_by_keyword_and_none_is_banned_on_trn2(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in _BANNED, f"{path.name}:{node.lineno}"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "nisa"
        ):
            assert not node.args, f"{path.name}:{node.lineno}"


_ADAPTER = ("launch.py", "sdk.py", "device.py")


def test_only_launch_knows_the_parts_of_the_adapter() -> None:
    parts = {f"kernels.{name.removesuffix('.py')}" for name in _ADAPTER[1:]}
    for path in _SOURCES:
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
        }
        assert path.name in _ADAPTER or not imported & parts, path


def test_only_the_adapter_names_a_runtime() -> None:
    for path in _SOURCES:
        if path.name in _ADAPTER:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                assert not name.startswith(("nki", "kernels.interpreter", "torch_neuronx")), path


def test_listing_the_kernels_loads_neither_torch_nor_a_runtime() -> None:
    code = (
        "import sys, kernels.catalog as c; assert len(c.KERNELS) >= 7; "
        "heavy = [m for m in ('torch', 'nki', 'kernels.launch') if m in sys.modules]; "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
