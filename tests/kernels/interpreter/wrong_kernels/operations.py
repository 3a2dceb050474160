"""Operations and dtypes that an instruction refuses."""

from __future__ import annotations

import kernels.interpreter.isa as nisa
import kernels.interpreter.language as nl
from tests.kernels.interpreter.wrong_kernels.registry import fresh, tile, wrong


@wrong(r"op is nl\.divide: no ALU of trn2 has it; multiply by nisa\.reciprocal")
def divide() -> None:
    nisa.tensor_tensor(dst=tile(4, 4), data1=tile(4, 4), data2=tile(4, 4), op=nl.divide)


@wrong(r"op0 is nl\.mod: no ALU of trn2 has it")
def mod() -> None:
    nisa.tensor_scalar(dst=tile(4, 4), data=tile(4, 4), op0=nl.mod, operand0=2.0)


@wrong(r"op0 is nl\.abs_max: no ALU of trn2 has it")
def abs_max() -> None:
    nisa.tensor_scalar(dst=tile(4, 4), data=tile(4, 4), op0=nl.abs_max, operand0=2.0)


@wrong(r"op0 is nl\.relu: no ALU of trn2 has it; use nl\.maximum with 0")
def relu_in_tensor_scalar() -> None:
    nisa.tensor_scalar(dst=tile(4, 4), data=tile(4, 4), op0=nl.relu, operand0=0.0)


@wrong(r"engine is vector: nl\.power runs on gpsimd")
def power_on_the_vector_engine() -> None:
    nisa.tensor_tensor(
        dst=tile(4, 4),
        data1=tile(4, 4),
        data2=tile(4, 4),
        op=nl.power,
        engine=nisa.engine.vector,
    )


@wrong(r"data is float32: bitwise operations take integer dtypes; view the bits")
def bits_of_a_float() -> None:
    nisa.tensor_scalar(
        dst=tile(4, 4, dtype=nl.int32), data=tile(4, 4), op0=nl.bitwise_and, operand0=1
    )


@wrong(r"op1 is nl\.left_shift with nl\.add: bitwise and arithmetic operations do not mix")
def bits_and_arithmetic_in_one_instruction() -> None:
    data = tile(4, 4, dtype=nl.int32)
    nisa.tensor_scalar(dst=data, data=data, op0=nl.left_shift, operand0=1, op1=nl.add, operand1=1)


@wrong(r"operand0 is float: an int or a \(P, 1\) tile for nl\.left_shift")
def shift_by_a_float() -> None:
    data = tile(4, 4, dtype=nl.int32)
    nisa.tensor_scalar(dst=data, data=data, op0=nl.left_shift, operand0=1.0)


@wrong(r"operand0 is bfloat16: operand tiles of arithmetic are float32; tensor_copy it")
def operand_tile_in_bfloat16() -> None:
    nisa.tensor_scalar(
        dst=tile(4, 4), data=tile(4, 4), op0=nl.add, operand0=tile(4, 1, dtype=nl.bfloat16)
    )


@wrong(r"operand0 is \[4, 2\]: a constant or a \(P, 1\) tile; use tensor_tensor")
def operand_tile_with_two_columns() -> None:
    nisa.tensor_scalar(dst=tile(4, 2), data=tile(4, 2), op0=nl.add, operand0=tile(4, 2))


@wrong(r"data is float8_e4m3fn: engines of trn2 do not have it \(trn3\); view the bytes")
def ocp_fp8_on_an_engine() -> None:
    view = tile(4, 4, dtype=nl.uint8).view(nl.float8_e4m3fn)
    nisa.activation(dst=tile(4, 4), op=nl.copy, data=view)


@wrong(r"predicate is float32: uint8, uint16 or uint32")
def float_predicate() -> None:
    nisa.tensor_copy_predicated(dst=tile(4, 4), src=tile(4, 4), predicate=tile(4, 4))


@wrong(r"src is bfloat16: the dtype of dst, float32")
def predicated_copy_of_another_dtype() -> None:
    nisa.tensor_copy_predicated(
        dst=tile(4, 4), src=tile(4, 4, dtype=nl.bfloat16), predicate=tile(4, 4, dtype=nl.uint8)
    )


@wrong(r"value is 1\.5: an int in -2147483648\.\.2147483647 for int32")
def memset_of_an_integer_with_a_fraction() -> None:
    nisa.memset(dst=fresh(4, 4, dtype=nl.int32), value=1.5)


@wrong(r"value is 256: an int in 0\.\.255 for uint8")
def memset_out_of_range() -> None:
    nisa.memset(dst=fresh(4, 4, dtype=nl.uint8), value=256)


@wrong(r"op is .*add.*: one of abs, .*")
def activation_with_an_alu_operation() -> None:
    nisa.activation(dst=tile(4, 4), op=nl.add, data=tile(4, 4))


@wrong(r"scale is bfloat16: float32; tensor_copy it")
def activation_scale_in_bfloat16() -> None:
    nisa.activation(dst=tile(4, 4), op=nl.exp, data=tile(4, 4), scale=tile(4, 1, dtype=nl.bfloat16))


@wrong(r"reduce_op is maximum: nl\.add; the Scalar engine's accumulators only add")
def activation_that_reduces_by_maximum() -> None:
    nisa.activation_reduce(
        dst=tile(4, 4),
        op=nl.exp,
        data=tile(4, 4),
        reduce_op=nl.maximum,
        reduce_res=fresh(4, 1),
    )


@wrong(r"nl\.sin takes -3\.14\d+\.\.3\.14\d+; reduce the range first")
def sin_out_of_range() -> None:
    nisa.activation(dst=tile(4, 4), op=nl.sin, data=tile(4, 4), scale=4.0)
