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
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.interpreter.portability.calls import call_findings
from kernels.interpreter.portability.scope import scope_findings
from kernels.interpreter.portability.source import KernelSource
from kernels.interpreter.portability.syntax import syntax_findings

__all__ = ["Finding", "lint_path", "lint_source", "python_files"]


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
        SyntaxError: it is no Python, or not in the encoding it declares (UTF-8 without one).
    """
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise _undecodable(Path(path), error) from error
    source = KernelSource(ast.parse(text, filename=str(path)))
    found = [
        Finding(str(path), line, code, message)
        for rule in (syntax_findings, call_findings, scope_findings)
        for line, code, message in rule(source)
    ]
    return sorted(set(found))


def _undecodable(path: Path, error: UnicodeDecodeError) -> SyntaxError:
    # The error counts within the chunk that was being read; the file is asked for the line.
    content = path.read_bytes()
    try:
        content.decode(error.encoding)
        line = 1
    except UnicodeDecodeError as found:
        line = content.count(b"\n", 0, found.start) + 1
    return SyntaxError(f"not {error.encoding} ({error.reason})", (str(path), line, None, None))


def lint_path(path: str | Path) -> list[Finding]:
    """Findings of a file, or of every file of `python_files` below a folder."""
    return [finding for file in python_files(Path(path)) for finding in lint_source(file)]


def python_files(path: Path) -> Iterator[Path]:
    """A file itself, or every .py file below a folder but those of the interpreter."""
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            if _INTERPRETER not in file.resolve().parents:
                yield file
    else:
        yield path
