"""What a failing case leaves behind: its tensors, its case, and the one line that replays it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from harness.core.case import Case, Tolerance
from harness.core.errors import InputError, UsageError
from harness.core.ops import OP_SHEET
from harness.core.record import strict_json, to_plain
from harness.core.results import ParityResult
from harness.core.weights import QuantisedWeight
from harness.run.inputs import Arguments
from harness.run.inputs.layouts import laid_out
from harness.run.verdict import Expected

__all__ = [
    "Bundle",
    "bundle_directory",
    "bundles_below",
    "read_bundle",
    "replay_command",
    "write_bundle",
]

_CASE_FILE = "case.json"
_TENSOR_FILE = "tensors.safetensors"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A stored case with its inputs and the budgets it was judged by."""

    case: Case
    arguments: Arguments
    tolerances: Mapping[str, Tolerance]
    backend: str


def bundle_directory(root: Path, case: Case) -> Path:
    """Where a case's bundle lies below `root`."""
    return root / re.sub(r"[^A-Za-z0-9_.+-]+", "_", case.case_id)


def bundles_below(directory: Path) -> list[Path]:
    """The bundle itself, or the bundles in a directory of them, by name.

    Raises:
        InputError: there is neither.
    """
    if (directory / _CASE_FILE).is_file():
        return [directory]
    found = sorted(path.parent for path in directory.glob(f"*/{_CASE_FILE}"))
    if not found:
        raise InputError(
            directory / _CASE_FILE, "file", "missing", "name a bundle or a directory of bundles"
        )
    return found


def write_bundle(
    directory: Path,
    case: Case,
    arguments: Arguments,
    expected: Expected | None,
    outputs: tuple[object, ...],
    result: ParityResult,
    *,
    found_in: str,
) -> Path:
    """Store a case in `directory` and return it; an earlier bundle there is replaced.

    Args:
        found_in: id of the case of the suite that failed; `case` may be a smaller one.

    Raises:
        UsageError: the directory cannot be written.
    """
    tensors = {f"input.{name}": tensor for name, tensor in arguments.tensors()}
    if expected is not None:
        names = [value.name for value in expected.spec.outputs]
        for side, values in (
            ("golden", expected.golden),
            ("baseline", expected.baseline),
            ("candidate", outputs),
        ):
            for name, value in zip(names, values, strict=False):  # a wrong number is the finding
                if isinstance(value, torch.Tensor):
                    tensors[f"{side}.{name}"] = value
    body = {
        "case": to_plain(case),
        "found_in": found_in,
        "backend": result.backend,
        "status": result.status,
        "message": result.message,
        "tolerances": expected.tolerances if expected is not None else {},
        "layouts": _weight_layouts(arguments),
        "scalars": _scalars(arguments),
        "replay": replay_command(directory, result.backend),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _CASE_FILE).write_text(strict_json(body) + "\n", encoding="utf-8")
        plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(plain, directory / _TENSOR_FILE)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{directory}: the bundle cannot be written ({error})") from error
    return directory


def replay_command(directory: Path, backend: str) -> str:
    """The one line that judges the stored case again."""
    return shlex.join(
        ["neuron-harness", "parity", "--replay", str(directory), "--backend", backend]
    )


def read_bundle(directory: Path) -> Bundle:
    """Load a stored case.

    Raises:
        InputError: a file is missing or broken.
    """
    path = directory / _CASE_FILE
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        case = Case(**body["case"])
        tolerances = {name: _tolerance(value) for name, value in body["tolerances"].items()}
        backend, layouts, scalars = body["backend"], body["layouts"], body["scalars"]
    except OSError as error:
        raise InputError(
            path, "file", error.strerror, "name a directory that a failing case has left"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(path, "content", str(error), "not a bundle's case.json") from error
    tensors = _read_tensors(directory / _TENSOR_FILE)
    return Bundle(case, _arguments(case, tensors, layouts, scalars, directory), tolerances, backend)


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(path, "content", str(error), "restore the bundle's tensors") from error


def _arguments(
    case: Case,
    tensors: Mapping[str, torch.Tensor],
    layouts: Mapping[str, Any],
    scalars: Mapping[str, Any],
    directory: Path,
) -> Arguments:
    spec = OP_SHEET[case.op]
    values: dict[str, Any] = {}
    for place, value in enumerate(spec.inputs):
        name = value.name
        try:
            if name in layouts:
                codes, scale = tensors[f"input.{name}.codes"], tensors[f"input.{name}.scale"]
                values[name] = QuantisedWeight(codes, scale, layouts[name])
            elif name in scalars:
                values[name] = scalars[name]
            else:
                tensor = tensors[f"input.{name}"]
                placed = value.kind != "weight" and (case.layout != "expanded" or place == 0)
                values[name] = laid_out(tensor, case.layout) if placed else tensor
        except KeyError as error:
            raise InputError(
                directory / _TENSOR_FILE, str(error), "missing", "restore the bundle's tensors"
            ) from error
    return Arguments(spec, values)


def _weight_layouts(arguments: Arguments) -> dict[str, str]:
    return {
        name: value.layout
        for name, value in arguments.values.items()
        if isinstance(value, QuantisedWeight)
    }


def _scalars(arguments: Arguments) -> dict[str, Any]:
    """Scalars and absent tensors (None)."""
    return {
        name: value
        for name, value in arguments.values.items()
        if not isinstance(value, (torch.Tensor, QuantisedWeight))
    }


def _tolerance(body: Mapping[str, Any]) -> Tolerance:
    return Tolerance(**{**body, "slice_axes": tuple(body["slice_axes"])})
