"""Constructs that the parser of NKI 0.3-0.6 rejects."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernels.interpreter.portability.source import Function, KernelSource, dotted_name

__all__ = ["syntax_findings"]

Row = tuple[int, str, str]
_LEGACY = ("neuronxcc.nki", "nki_cpu_simulator", "nki.typing")


def syntax_findings(source: KernelSource) -> Iterator[Row]:
    """Rows (line, code, message)."""
    yield from _imports(source)
    for function in source.kernel_functions:
        yield from _signature(source, function)
    for node in source.kernel_nodes():
        if isinstance(node, ast.Compare):
            yield from _identity(node)
        elif isinstance(node, ast.Dict):
            yield from _dict_keys(node)
    yield from _classes(source)


def _imports(source: KernelSource) -> Iterator[Row]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            if module.startswith(_LEGACY):
                yield node.lineno, "legacy-import", f"{module}: import nki, nki.isa, nki.language"


def _identity(node: ast.Compare) -> Iterator[Row]:
    if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        yield node.lineno, "identity", "`is` is not in NKI's subset: use == or !="


def _dict_keys(node: ast.Dict) -> Iterator[Row]:
    for key in node.keys:
        if isinstance(key, ast.Constant) and not isinstance(key.value, str):
            yield key.lineno, "dict-key", f"key {key.value!r}: dictionary keys are strings"


def _signature(source: KernelSource, function: Function) -> Iterator[Row]:
    if function.args.kwonlyargs:
        names = ", ".join(argument.arg for argument in function.args.kwonlyargs)
        yield (
            function.lineno,
            "keyword-only",
            f"{function.name}: {names} after `*`: make them ordinary parameters",
        )
    if not source.is_jit(function):
        return
    for argument in (*function.args.posonlyargs, *function.args.args):
        if argument.annotation is not None and _is_list(argument.annotation):
            yield argument.lineno, "list-argument", f"{argument.arg}: pass a tuple, not a list"
    for default in function.args.defaults:
        if isinstance(default, ast.List):
            yield default.lineno, "list-argument", "a list default: use a tuple"


def _is_list(annotation: ast.expr) -> bool:
    target = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return dotted_name(target).rsplit(".", 1)[-1] in ("list", "List")


def _classes(source: KernelSource) -> Iterator[Row]:
    used = {
        node.func.id
        for node in source.kernel_nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef) or node.name not in used:
            continue
        bases = [dotted_name(base).rsplit(".", 1)[-1] for base in node.bases]
        if bases != ["NKIObject"]:
            shown = ", ".join(bases) or "nothing"
            yield (
                node.lineno,
                "class-base",
                f"{node.name} derives from {shown}: classes in kernels derive from nl.NKIObject",
            )
