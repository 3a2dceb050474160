"""Lines and branches of kernel sources that the tier for devices runs, measured by tracing.

Of a kernel's source every line that is executed on the device side must run under the tier, and
every `if` must go both ways, but for what is listed here with its reason.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import kernels
from harness.core.ops import OP_SHEET
from harness.run.golden import kernel_numerics
from harness.run.inputs import build_inputs
from kernels.launch import backend_selected, lnc_selected
from kernels.op_table import TABLE
from suites.loader import load_op_suite

_FOLDER = Path(next(iter(kernels.__path__)))
_HOST_ONLY = {"launch.py", "device.py", "sdk.py", "contract.py", "weight_layout.py", "probes.py"}
_LARGEST = 20_000  # axes above it take minutes on the interpreter and add no path
# file: text of a line -> why the tier cannot, or need not, run it.
_ONE_CORE = "the tier runs two cores a launch, as a device does unless told otherwise"
_EXCUSED_LINES = {"tiling.py": {"return 0, num_units": _ONE_CORE}}
_EXCUSED_BRANCHES = {"tiling.py": {"if nl.program_ndim() == 0: taken": _ONE_CORE}}
_END = 0  # the line after a function's last

Arc = tuple[str, int, int]


def device_functions() -> dict[str, list[ast.FunctionDef]]:
    """File name -> its functions that use nl or nisa."""
    found = {}
    for path in sorted(_FOLDER.glob("*.py")):
        if path.name in _HOST_ONLY:
            continue
        functions = [
            node
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
            and any(isinstance(n, ast.Name) and n.id in ("nisa", "nl") for n in ast.walk(node))
        ]
        if functions:
            found[path.name] = functions
    return found


@contextmanager
def traced(arcs: set[Arc]) -> Iterator[None]:
    """Notes (file, line before, line) of every step in kernels/*.py, in every thread."""
    names: dict[CodeType, str] = {}

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        name = names.get(code)
        if name is None:
            path = Path(code.co_filename)
            name = names[code] = path.name if path.parent == _FOLDER else ""
        if not name:
            return None
        last = -code.co_firstlineno

        def on_line(_: FrameType, kind: str, __: Any) -> Any:
            nonlocal last
            if kind in ("line", "return"):
                line = frame.f_lineno if kind == "line" else _END
                arcs.add((name, last, line))
                last = line
            return on_line

        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """Those that execute something: docstrings do not."""
    body = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function]
    return [
        node
        for node in body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def run_device_tier() -> set[Arc]:
    arcs: set[Arc] = set()
    for stem in sorted({spec.stem for spec in OP_SHEET.values()}):
        for case in load_op_suite(stem).cases_of("device"):
            if max(case.axes.values()) > _LARGEST:
                continue
            arguments = build_inputs(case, fp8_max=240)
            with backend_selected("interpret"), lnc_selected(2), traced(arcs):
                TABLE.ops[case.op](*arguments.positional(), numerics=kernel_numerics(case, 240))
    return arcs


@pytest.fixture(scope="module")
def arcs() -> set[Arc]:
    torch.set_num_threads(1)
    return run_device_tier()


@pytest.mark.slow
def test_the_device_tier_runs_every_line_and_branch_of_the_kernels(
    arcs: set[Arc], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {(name, line) for name, _, line in arcs}
    missed_lines, missed_branches = [], []
    num_lines = num_branches = 0
    for name, functions in device_functions().items():
        text = (_FOLDER / name).read_text(encoding="utf-8").splitlines()
        for function in functions:
            for node in statements(function):
                num_lines += 1
                span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any((name, line) in lines for line in span):
                    said = text[node.lineno - 1].strip()
                    if said not in _EXCUSED_LINES.get(name, {}):
                        missed_lines.append(f"{name}:{node.lineno} {said}")
                elif isinstance(node, ast.If):
                    num_branches += 2
                    test = range(node.test.lineno, (node.test.end_lineno or 0) + 1)
                    after = {to for file, at, to in arcs if file == name and at in test}
                    after -= set(test)
                    body = node.body[0].lineno
                    ways = {"taken": body in after, "passed by": bool(after - {body})}
                    for way, seen in ways.items():
                        said = f"{text[node.lineno - 1].strip()} {way}"
                        if not seen and said not in _EXCUSED_BRANCHES.get(name, {}):
                            missed_branches.append(f"{name}:{node.lineno} never {said}")
    with capsys.disabled():
        print(
            f"\ndevice tier: {num_lines - len(missed_lines)} of {num_lines} statements, "
            f"{num_branches - len(missed_branches)} of {num_branches} branch ways"
        )
        for missed in (*missed_lines, *missed_branches):
            print(" ", missed)
    assert not missed_lines
    assert not missed_branches
