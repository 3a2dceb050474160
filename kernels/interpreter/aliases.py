"""Answering as the modules `nki`, `nki.isa`, `nki.language` in a process that lacks them.

nki             jit, simulate, cpu_simulate
nki.isa         the instructions; nki.isa.constants the enumerations (a legacy name)
nki.language    tensors, operations, loops; nki.dtype the dtypes (a legacy name)
nki.simulator   simulate_kernel(function, args, kwargs, _lnc)
nki.collectives names that are refused
nki_cpu_simulator   another name of nki, used by older test harnesses
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels.interpreter import collectives, isa, language
from kernels.interpreter import nki as interpreter_nki
from kernels.interpreter.dtypes import DTYPES
from kernels.interpreter.isa import enums
from kernels.sdk import find_nki

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ALIASES", "RealNkiPresentError", "aliases_installed", "install"]


class RealNkiPresentError(RuntimeError):
    """AWS's nki is installed: the interpreter does not take its place unasked."""


def _simulate_kernel(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    _lnc: int = 1,
) -> Any:
    kernel = interpreter_nki.simulate(func)
    return kernel[_lnc](*args, **dict(kwargs or {}))


def _module(name: str, members: Mapping[str, Any], *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, f"{name}, answered by the bundled interpreter.")
    module.__dict__.update(members)
    if is_package:
        module.__path__ = []
    return module


def _build() -> dict[str, ModuleType]:
    simulator = _module("nki.simulator", {"simulate_kernel": _simulate_kernel})
    constants = _module("nki.isa.constants", {name: getattr(enums, name) for name in enums.__all__})
    dtype = _module("nki.dtype", DTYPES)
    nki = _module(
        "nki",
        {
            "jit": interpreter_nki.jit,
            "simulate": interpreter_nki.simulate,
            "cpu_simulate": interpreter_nki.simulate,
            "isa": isa,
            "language": language,
            "simulator": simulator,
            "collectives": collectives,
            "dtype": dtype,
            "__version__": "0.6.0+neuron_harness",
        },
        is_package=True,
    )
    return {
        "nki": nki,
        "nki.isa": isa,
        "nki.isa.constants": constants,
        "nki.language": language,
        "nki.simulator": simulator,
        "nki.collectives": collectives,
        "nki.dtype": dtype,
        "nki_cpu_simulator": nki,
    }


ALIASES: dict[str, ModuleType] = _build()


def install(*, replace_real: bool = False) -> None:
    """Put the aliases into sys.modules.

    Raises:
        RealNkiPresentError: AWS's nki is installed and `replace_real` is not given.
    """
    if (
        not replace_real
        and find_nki().kind == "real"
        and sys.modules.get("nki") is not (ALIASES["nki"])
    ):
        raise RealNkiPresentError(
            "AWS's nki is installed here: run the script with it, or ask for the interpreter "
            "explicitly"
        )
    sys.modules.update(ALIASES)


@contextmanager
def aliases_installed(*, replace_real: bool = False) -> Iterator[None]:
    """The aliases inside the block; the modules from before afterwards."""
    before = {name: sys.modules.get(name) for name in ALIASES}
    install(replace_real=replace_real)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
