"""Names to lazy targets: `"package.module:object"` is imported only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.errors import UsageError
from harness.core.suggest import near_names

__all__ = ["Registry", "resolve_target"]


def resolve_target(target: str) -> Any:
    """Import `"package.module:object"` and return the object.

    Raises:
        UsageError: the text has no colon, the module does not exist or lacks the object.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"target {target!r} must read 'package.module:object'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise
        raise UsageError(f"target {target!r}: there is no module {module_name}") from error
    if not hasattr(module, attribute):
        raise UsageError(f"target {target!r}: {module_name} has no {attribute!r}")
    return getattr(module, attribute)


class Registry(Mapping[str, str]):
    """A fixed menu of lazy targets.

    Args:
        kind: what the names are ("op", "command"), for messages.
        targets: (name, "package.module:object") pairs.

    Raises:
        ValueError: a name occurs twice.
    """

    def __init__(self, kind: str, targets: tuple[tuple[str, str], ...]) -> None:
        self.kind = kind
        self._targets: dict[str, str] = {}
        for name, target in targets:
            if name in self._targets:
                raise ValueError(f"{kind} {name!r} is registered twice")
            self._targets[name] = target

    def __getitem__(self, name: str) -> str:
        return self._targets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def resolve(self, name: str) -> Any:
        """Import and return the object called `name`.

        Raises:
            UsageError: unknown name; the message lists near names.
        """
        if name not in self._targets:
            raise UsageError(f"{self.kind} {name!r} is not known{near_names(name, self)}")
        return resolve_target(self._targets[name])
