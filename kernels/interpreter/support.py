"""What of the public NKI API this interpreter executes: supported, partly (why), not (why)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from types import ModuleType
from typing import Any

__all__ = ["SupportRow", "public_signatures", "support_table"]


@dataclass(frozen=True, slots=True)
class SupportRow:
    """One public function.

    Attributes:
        module: "nki.isa", "nki.language" or "nki.collectives".
        state: "supported", "partly" or "not".
        reason: why it is not simply supported, "" where it is.
    """

    module: str
    name: str
    state: str
    reason: str = ""


_NEWER = "NeuronCore-v4 only; calling it is refused"
_PARTLY = {
    ("nki.isa", "activation"): "exact functions instead of the hardware's polynomials; only sin's "
    "input range is enforced",
    ("nki.isa", "activation_reduce"): "as activation",
    ("nki.isa", "bn_stats"): "order of the six values as in older public documents",
    ("nki.isa", "bn_aggr"): "input order as bn_stats writes it",
    ("nki.isa", "dropout"): "the bits are not those of the hardware",
    ("nki.isa", "rng"): "the bits are not those of the hardware",
    ("nki.isa", "set_rng_seed"): "the bits are not those of the hardware",
    ("nki.isa", "rand_set_state"): "the state is not that of the hardware",
    ("nki.isa", "rand_get_state"): "the state is not that of the hardware",
    ("nki.isa", "sequence_bounds"): "padding rule as in older public documents",
    ("nki.isa", "tensor_scalar_reduce"): "load_reduce starts from reduce_init",
    ("nki.isa", "nc_matmul"): "order of k inside double_row is j * 128 + p",
    ("nki.isa", "dma_copy"): "descriptor engines are checked, not modelled",
    ("nki.language", "cos"): "|x| <= 3 pi / 2: the range of the engine's sin",
    ("nki.language", "tan"): "|x| <= pi: the range of the engine's sin",
    ("nki.language", "matmul"): "transpose_x=True only",
    ("nki.language", "softmax"): "over all free axes",
    ("nki.language", "rms_norm"): "over all free axes",
    ("nki.language", "var"): "over all free axes",
    ("nki.language", "rand"): "the bits are not those of the hardware",
    ("nki.language", "dropout"): "the bits are not those of the hardware",
    ("nki.language", "random_seed"): "the bits are not those of the hardware",
    ("nki.language", "shared_constant"): "numpy arrays only",
}
_NOT = {
    ("nki.isa", "activate2"): _NEWER,
    ("nki.isa", "exponential"): _NEWER,
    ("nki.isa", "nc_matmul_mx"): _NEWER,
    ("nki.isa", "quantize_mx"): _NEWER,
    ("nki.isa", "rand2"): _NEWER,
    ("nki.isa", "topk"): "the public description of its 16-partition layout does not determine "
    "the result",
    ("nki.language", "divide"): "no ALU of trn2 has it",
    ("nki.language", "mod"): "no ALU of trn2 has it",
    ("nki.language", "fmod"): "no ALU of trn2 has it",
    ("nki.language", "abs_max"): "no ALU of trn2 has it",
    ("nki.language", "abs_min"): "no ALU of trn2 has it",
    ("nki.language", "dynamic_range"): "removed in NKI 0.7: nl.fori_loop",
}
_COLLECTIVE = "collectives are refused: use torch.distributed between kernels"


def public_signatures() -> dict[str, Any]:
    """The documented names and parameters, by module."""
    file = resources.files("kernels.interpreter") / "nki_signatures.json"
    modules: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["modules"]
    return modules


def support_table() -> list[SupportRow]:
    """One row for each documented function, in the order of the documents."""
    from kernels.interpreter import collectives, isa, language, nki

    modules: dict[str, ModuleType] = {
        "nki.isa": isa,
        "nki.language": language,
        "nki.collectives": collectives,
        "nki": nki,
    }
    return [
        _row(module, name, hasattr(modules[module], name))
        for module, sheet in public_signatures().items()
        for name in sheet["functions"]
    ]


def _row(module: str, name: str, exists: bool) -> SupportRow:
    key = (module, name)
    if not exists:
        return SupportRow(module, name, "not", "absent")
    if module == "nki.collectives":
        return SupportRow(module, name, "not", _COLLECTIVE)
    if key in _NOT:
        return SupportRow(module, name, "not", _NOT[key])
    if key in _PARTLY:
        return SupportRow(module, name, "partly", _PARTLY[key])
    return SupportRow(module, name, "supported")
