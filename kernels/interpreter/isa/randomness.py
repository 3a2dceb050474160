"""Random bits. Seeded, and the same in every run; the bits are not those of the hardware."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter.casts import as_float32, store_float32
from kernels.interpreter.current import LOCAL
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face
from kernels.interpreter.isa.enums import engine
from kernels.interpreter.isa.instruction import (
    check_compute_operand,
    check_same_shape,
    chosen_engine,
    instruction,
)
from kernels.interpreter.plan import Plan, Plans
from kernels.interpreter.tensor import NkiTensor

__all__ = ["dropout", "rand_get_state", "rand_set_state", "rng", "set_rng_seed"]

Array = npt.NDArray[Any]
_STATE_WORDS = 6
_DEFAULT_SEED = 0


def _generator() -> np.random.Generator:
    program = LOCAL.program
    assert program is not None
    if program.rng is None:
        program.rng = np.random.Generator(np.random.PCG64(_DEFAULT_SEED))
    generator: np.random.Generator = program.rng
    return generator


@instruction
def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> None:
    """Seed the generator from a tile."""
    plan = _SEED_PLANS[(src_seeds.face, "set_rng_seed")]
    plan.run(src_seeds.read("src_seeds"))
    LOCAL.program.count(plan)  # type: ignore[union-attr]


@instruction
def rand_set_state(
    src_seeds: NkiTensor, engine: engine = engine.gpsimd, name: str | None = None
) -> None:
    """Set the generator's state from a tile of seeds."""
    plan = _SEED_PLANS[(src_seeds.face, "rand_set_state")]
    plan.run(src_seeds.read("src_seeds"))
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_seed(seeds: Face, label: str) -> Plan:
    check_compute_operand(seeds, "src_seeds")
    if seeds.dtype.name not in ("uint32", "int32"):
        refuse("src_seeds", seeds.dtype, "uint32 or int32")

    def run(values: Array) -> None:
        program = LOCAL.program
        assert program is not None
        words = [int(word) & 0xFFFFFFFF for word in values.reshape(-1)]
        program.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

    return Plan(label, "gpsimd", run, seeds, (seeds,))


@instruction
def rand_get_state(dst: NkiTensor, engine: engine = engine.gpsimd, name: str | None = None) -> None:
    """Seeds from which rand_set_state continues: drawn from the generator."""
    plan = _BITS_PLANS[dst.face, engine, "rand_get_state"]
    plan.run(dst.array)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


@instruction
def rng(dst: NkiTensor, engine: engine = engine.vector, name: str | None = None) -> None:
    """dst = random bits, every bit pattern of its dtype."""
    plan = _BITS_PLANS[dst.face, engine, "rng"]
    plan.run(dst.array)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_bits(dst: Face, requested: engine, label: str) -> Plan:
    check_compute_operand(dst, "dst")
    name = chosen_engine(requested, engine.vector, (engine.vector, engine.gpsimd))
    if not dst.dtype.is_integer:
        refuse("dst", dst.dtype, "an integer dtype: random bits are no numbers")

    def run(out: Array) -> None:
        words = _generator().integers(0, 2**32, size=dst.shape, dtype=np.uint32)
        np.copyto(out, words, casting="unsafe")

    return Plan(label, name, run, dst, ())


@instruction
def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> None:
    """dst = data with each element set to 0 with probability prob (a number or (P, 1))."""
    is_tile = type(prob) is NkiTensor
    plan = _DROPOUT_PLANS[dst.face, data.face]
    chance = as_float32(prob.read("prob"), "b").reshape(-1, 1) if is_tile else np.float32(prob)
    if not ((chance >= 0) & (chance <= 1)).all():
        refuse("prob", prob if not is_tile else "values", "0..1")
    plan.run(dst.array, data.read("data"), chance)
    dst.wrote()
    LOCAL.program.count(plan)  # type: ignore[union-attr]


def _plan_dropout(dst: Face, data: Face) -> Plan:
    check_compute_operand(dst, "dst")
    check_compute_operand(data, "data")
    check_same_shape(("data", data), ("dst", dst))

    def run(out: Array, source: Array, chance: Any) -> None:
        draws = _generator().random((data.partitions, data.free_size), dtype=np.float32)
        values = as_float32(source, "a").reshape(draws.shape)
        kept = np.where(draws < chance, np.float32(0), values)
        store_float32(out, kept.reshape(dst.shape))

    return Plan("dropout", "vector", run, dst, (data,))


_SEED_PLANS = Plans(_plan_seed)
_BITS_PLANS = Plans(_plan_bits)
_DROPOUT_PLANS = Plans(_plan_dropout)
