"""Names that kernel code takes from outside: NKI resolves globals, not closure cells."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from kernels.interpreter.portability.source import Function, KernelSource

__all__ = ["scope_findings"]

Row = tuple[int, str, str]


def scope_findings(source: KernelSource) -> Iterator[Row]:
    """Rows (line, code, message)."""
    mutable = _mutable_globals(source.tree)
    for function in source.kernel_functions:
        bound = _bound_names(function)
        for node in ast.walk(function):
            if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                continue
            if node.id in mutable and node.id not in bound:
                yield (
                    node.lineno,
                    "mutable-global",
                    f"{node.id} is a module-level {mutable[node.id]}: kernels are cached by source "
                    "and arguments; use a tuple or a parameter",
                )
    yield from _closures(source)


def _mutable_globals(tree: ast.Module) -> dict[str, str]:
    kinds: dict[type[ast.expr], str] = {ast.List: "list", ast.Dict: "dict", ast.Set: "set"}
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        kind = kinds.get(type(node.value))
        if kind is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found.update({t.id: kind for t in targets if isinstance(t, ast.Name)})
    return found


def _bound_names(function: Function) -> set[str]:
    """Parameters and names the function itself assigns."""
    arguments = function.args
    names = {
        argument.arg
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    names |= {extra.arg for extra in (arguments.vararg, arguments.kwarg) if extra is not None}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node is not function:
            names.add(node.name)
            if isinstance(node, ast.FunctionDef):
                names |= {argument.arg for argument in node.args.args}
        elif isinstance(node, ast.Lambda):
            names |= {argument.arg for argument in node.args.args}
    return names


def _closures(source: KernelSource) -> Iterator[Row]:
    """Jitted functions inside others that read the outer one's variables.

    Bodies of nl.fori_loop inside a kernel may read the kernel's tensors: they are traced with it.
    """
    for function in source.kernel_functions:
        outer = source.enclosing(function)
        if outer is None or not source.is_jit(function):
            continue
        own, around = _bound_names(function), _bound_names(outer) - {function.name}
        taken = {
            node.id: node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.id in around - own
            and not hasattr(builtins, node.id)
        }
        for name, line in taken.items():
            yield (
                line,
                "closure",
                f"{function.name} reads {name} of {outer.name}: pass it as a parameter",
            )
