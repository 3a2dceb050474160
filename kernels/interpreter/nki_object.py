"""NKIObject: the base class of structures that kernels may build."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["NKIObject"]


class NKIObject:
    """Plain container. Un-annotated class attributes are defaults of the constructor too."""

    def __init__(self, **values: Any) -> None:
        for name in self._field_names():
            if name in values:
                setattr(self, name, values.pop(name))
            elif not hasattr(type(self), name):
                setattr(self, name, None)
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(values))}")

    @classmethod
    def _field_names(cls) -> list[str]:
        names: dict[str, None] = {}
        for base in reversed(cls.__mro__):
            if base in (object, NKIObject):
                continue
            names.update(dict.fromkeys(inspect.get_annotations(base)))
            for name, value in vars(base).items():
                is_data = not callable(value) and not isinstance(
                    value, property | classmethod | staticmethod
                )
                if not name.startswith("_") and is_data:
                    names[name] = None
        return list(names)
