"""A kernel file as the lint sees it: which functions are kernel code, what names mean."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["Function", "KernelSource", "dotted_name"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
_ISA_MODULES = ("nki.isa", "kernels.interpreter.isa")
_LANGUAGE_MODULES = ("nki.language", "kernels.interpreter.language")


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` as text, "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


class KernelSource:
    """A parsed file.

    Attributes:
        tree: its syntax tree.
        kernel_functions: kernel code, in order of line.
        isa_names, language_names: what nki.isa and nki.language are called here.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.isa_names = {"nisa", "nki.isa"}
        self.language_names = {"nl", "nki.language"}
        self._read_imports()
        self._functions = {
            node: None
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self.kernel_functions = self._find_kernel_functions()

    def kernel_nodes(self) -> Iterator[ast.AST]:
        """Every node of kernel code, once."""
        seen: set[ast.AST] = set()
        for function in self.kernel_functions:
            for node in ast.walk(function):
                if node not in seen:
                    seen.add(node)
                    yield node

    def is_isa(self, node: ast.expr) -> str:
        """The instruction's name if `node` is nisa.<name>, else ""."""
        return self._member(node, self.isa_names)

    def is_language(self, node: ast.expr) -> str:
        """The name if `node` is nl.<name>, else ""."""
        return self._member(node, self.language_names)

    @staticmethod
    def is_jit(function: Function) -> bool:
        """Whether nki.jit decorates the function."""
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if dotted_name(target).rsplit(".", 1)[-1] == "jit":
                return True
        return False

    def enclosing(self, function: Function) -> Function | None:
        """The innermost function around `function`."""
        best: Function | None = None
        for other in self._functions:
            inside = other is not function and any(n is function for n in ast.walk(other))
            if inside and (best is None or any(n is other for n in ast.walk(best))):
                best = other
        return best

    @staticmethod
    def _member(node: ast.expr, modules: set[str]) -> str:
        if not isinstance(node, ast.Attribute):
            return ""
        return node.attr if dotted_name(node.value) in modules else ""

    def _read_imports(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._note(alias.name, alias.asname or alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._note(f"{node.module}.{alias.name}", alias.asname or alias.name)

    def _note(self, module: str, name: str) -> None:
        if module in _ISA_MODULES:
            self.isa_names.add(name)
        elif module in _LANGUAGE_MODULES:
            self.language_names.add(name)

    def _find_kernel_functions(self) -> list[Function]:
        kernels = {f for f in self._functions if self.is_jit(f) or self._issues_instructions(f)}
        by_name = {function.name: function for function in self._functions}
        pending = list(kernels)
        while pending:
            for node in ast.walk(pending.pop()):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                    continue
                called = by_name.get(node.func.id)
                if called is not None and called not in kernels:
                    kernels.add(called)
                    pending.append(called)
        return sorted(kernels, key=lambda function: function.lineno)

    def _issues_instructions(self, function: Function) -> bool:
        # An inner kernel does not make the function around it kernel code.
        pending: list[ast.AST] = list(ast.iter_child_nodes(function))
        while pending:
            node = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and self.is_jit(node):
                continue
            if isinstance(node, ast.Call) and self.is_isa(node.func):
                return True
            pending.extend(ast.iter_child_nodes(node))
        return False
