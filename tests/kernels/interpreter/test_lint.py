"""Each rule finds its construct at its line, and our own kernels have no findings."""

from __future__ import annotations

from pathlib import Path

import pytest

import kernels
from kernels.interpreter.lint import lint_path, lint_source

_HEAD = """\
import nki
import nki.isa as nisa
import nki.language as nl

TABLE = {"a": 1}
SIZES = (1, 2)
"""

# The marked line is the one with a finding.
_CASES = {
    "identity": """
@nki.jit
def kernel(x, y=None):
    if y is None:  # <-
        return x
""",
    "keyword-only": """
@nki.jit
def kernel(x, *, y):  # <-
    return x
""",
    "list-argument": """
@nki.jit
def kernel(x: list[int]):  # <-
    return x
""",
    "dict-key": """
@nki.jit
def kernel(x):
    return {1: x}  # <-
""",
    "class-base": """
class Shape:  # <-
    pass

@nki.jit
def kernel(x):
    return Shape()
""",
    "closure": """
def make(width):
    @nki.jit
    def kernel(x):
        return nl.ndarray((128, width), dtype=x.dtype)  # <-
    return kernel
""",
    "mutable-global": """
@nki.jit
def kernel(x):
    return TABLE["a"]  # <-
""",
    "positional": """
def helper(dst, src):
    nisa.tensor_copy(dst, src)  # <-
""",
    "not-on-trn2": """
def helper(dst, src):
    nisa.tensor_tensor(dst=dst, data1=src, data2=src, op=nl.divide)  # <-
""",
    "deprecated": """
@nki.jit
def kernel(x):
    for i in nl.affine_range(4):  # <-
        pass
""",
    "sliced-ap": """
@nki.jit
def kernel(x):
    part = x[:, 0:4]
    return part.ap(pattern=[[1, 4]])  # <-
""",
    "legacy-import": """
import neuronxcc.nki.language  # <-
""",
}


def _write(folder: Path, body: str) -> tuple[Path, int]:
    path = folder / "kernel.py"
    text = _HEAD + body
    path.write_text(text, encoding="utf-8")
    (line,) = [number for number, row in enumerate(text.splitlines(), 1) if row.endswith("# <-")]
    return path, line


@pytest.mark.parametrize("code", sorted(_CASES))
def test_rule_finds_its_construct(code: str, tmp_path: Path) -> None:
    path, line = _write(tmp_path, _CASES[code])
    (finding,) = lint_source(path)
    assert (finding.code, finding.line, finding.file) == (code, line, str(path))
    assert str(finding).startswith(f"{path}:{line}: {code}: ")


@pytest.mark.parametrize(
    "instruction", ["activate2", "exponential", "nc_matmul_mx", "quantize_mx", "rand2"]
)
def test_instructions_of_later_cores(instruction: str, tmp_path: Path) -> None:
    path, line = _write(tmp_path, f"def helper(t):\n    nisa.{instruction}(dst=t)  # <-\n")
    assert [(f.code, f.line) for f in lint_source(path)] == [("not-on-trn2", line)]


_CLEAN = """
class Shape(nl.NKIObject):
    rows = 1

def helper(dst, src):
    nisa.tensor_copy(dst=dst, src=src)

@nki.jit
def kernel(x, sizes: tuple = SIZES):
    tile = nl.ndarray((128, 4), dtype=x.dtype, buffer=nl.sbuf)
    whole = x[:, 0:4]
    whole = x
    view = whole.ap(pattern=[[4, 128], [1, 4]])
    def body(i):
        nisa.dma_copy(dst=tile, src=view)
    nl.fori_loop(0, 4, body)
    helper(tile, tile)
    return {"a": Shape()}

def host(x, *, y=None):
    return y is None and {1: TABLE}
"""


def test_portable_kernels_and_host_code_have_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(_HEAD + _CLEAN, encoding="utf-8")
    assert lint_source(path) == []


def test_a_helper_called_from_a_kernel_is_kernel_code(tmp_path: Path) -> None:
    body = "def helper(x):\n    return x is None  # <-\n\n@nki.jit\ndef kernel(x):\n    helper(x)\n"
    path, line = _write(tmp_path, body)
    assert [(f.code, f.line) for f in lint_source(path)] == [("identity", line)]


def test_folders_are_searched_and_findings_sorted(tmp_path: Path) -> None:
    for name in ("b", "a"):
        folder = tmp_path / name
        folder.mkdir()
        _write(folder, _CASES["identity"])
    assert [Path(f.file).parent.name for f in lint_path(tmp_path)] == ["a", "b"]


def test_our_own_kernels_are_portable() -> None:
    folder = Path(str(kernels.__file__)).parent
    findings = lint_path(folder)
    assert [str(finding) for finding in findings] == []
    assert len(list(folder.glob("*_nki.py"))) >= 7
