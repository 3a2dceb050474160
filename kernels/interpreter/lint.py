"""Portability findings for kernel sources, read without running them.

What is looked at: functions decorated with nki.jit, functions that call nki.isa, and what those
call in the same file. Host code beside them is left alone.

    code              finding
    identity          `is` / `is not`: the parser of NKI 0.3-0.6 has no such operator
    keyword-only      `*` in a signature of kernel code
    list-argument     a list as a kernel argument (default or annotation)
    dict-key          a dictionary key that is no string
    class-base        kernel code builds a class that does not derive from nl.NKIObject
    closure           an inner kernel reads a variable of the function around it
    mutable-global    kernel code reads a module-level list, dict or set
    positional        an operand of an isa call that is not named
    not-on-trn2       an operation or instruction that trn2 does not have
    deprecated        gone or deprecated since NKI 0.7
    sliced-ap         `.ap` on a sliced view: documents disagree on what it addresses
    legacy-import     modules of NKI before 0.3
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.interpreter.portability.calls import call_findings
from kernels.interpreter.portability.scope import scope_findings
from kernels.interpreter.portability.source import KernelSource
from kernels.interpreter.portability.syntax import syntax_findings

__all__ = ["Finding", "lint_path", "lint_source"]


_INTERPRETER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place in a kernel source.

    Attributes:
        file, line: where; line counts from 1.
        code: the rule, one word.
        message: what is wrong and what to write instead.
    """

    file: str
    line: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}: {self.message}"


def lint_source(path: str | Path) -> list[Finding]:
    """Findings of one file, by line.

    Raises:
        OSError: the file cannot be read.
        SyntaxError: it is no Python.
    """
    text = Path(path).read_text(encoding="utf-8")
    source = KernelSource(ast.parse(text, filename=str(path)))
    found = [
        Finding(str(path), line, code, message)
        for rule in (syntax_findings, call_findings, scope_findings)
        for line, code, message in rule(source)
    ]
    return sorted(set(found))


def lint_path(path: str | Path) -> list[Finding]:
    """Findings of a file, or of every .py file below a folder but the interpreter itself."""
    return [finding for file in _python_files(Path(path)) for finding in lint_source(file)]


def _python_files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            if _INTERPRETER not in file.resolve().parents:
                yield file
    else:
        yield path
