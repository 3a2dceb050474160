"""e4m3 travels as bytes through compiled graphs, with torch's own bits as the measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed

from engine.graphs.e4m3_bytes import decode_e4m3_bytes, encode_e4m3_bytes
from engine.graphs.torch_backend import backend_over
from engine.graphs.uint8_backend import BACKEND, float8_nodes

E4M3 = torch.float8_e4m3fn
ALL_CODES = torch.arange(256, dtype=torch.int32).to(torch.uint8)
ALL_BF16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal values and signs; every NaN counts as one."""
    return bool(
        torch.equal(left.isnan(), right.isnan())
        and torch.equal(left.nan_to_num(0.0), right.nan_to_num(0.0))
        and torch.equal(left.signbit() | left.isnan(), right.signbit() | right.isnan())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_all_256_codes_decode_to_torchs_values(dtype: torch.dtype) -> None:
    assert _same_bits(decode_e4m3_bytes(ALL_CODES, dtype), ALL_CODES.view(E4M3).to(dtype))


def test_all_65536_bf16_values_encode_to_torchs_bytes() -> None:
    assert torch.equal(encode_e4m3_bytes(ALL_BF16), ALL_BF16.to(E4M3).view(torch.uint8))


def test_float32_values_around_every_tie_encode_to_torchs_bytes() -> None:
    values = ALL_CODES.view(E4M3).float()
    finite = values[values.isfinite()].sort().values.unique()
    ties = (finite[1:] + finite[:-1]) / 2
    edges = torch.tensor([448.0, 464.0, 470.0, 480.0, 1e30, torch.inf, 2.0**-10, 0.0])
    points = torch.cat([finite, ties, edges, -edges])
    for direction in (-torch.inf, torch.inf):
        near = torch.nextafter(points, torch.tensor(direction))
        points = torch.cat([points, near])
    assert torch.equal(encode_e4m3_bytes(points), points.to(E4M3).view(torch.uint8))


class _Recorder:
    """Keeps the graphs it is handed and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        assert all(value.dtype != E4M3 for value in inputs if isinstance(value, torch.Tensor))
        self.graphs.append(graph)
        return graph


def _quantised_product(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A linear over fp8 activations and weights, as the model has it."""
    blocks = x.float().reshape(x.shape[0], -1, 32)
    step = blocks.abs().amax(-1, keepdim=True) / 448
    rounded = (blocks / step).to(E4M3)
    values = (rounded.to(torch.float32) * step).flatten(1)
    weight = codes.view(E4M3)[: codes.shape[0]].to(torch.float32) * scale
    return values @ weight.t()


def _operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(5, 64, generator=draw).bfloat16()
    codes = torch.randint(0, 0x7F, (16, 64), generator=draw, dtype=torch.uint8)
    return x, codes, torch.rand(16, 1, generator=draw)


def test_a_compiled_quantised_linear_has_no_float8_and_the_eager_bits() -> None:
    recorder = _Recorder()
    compiled = torch.compile(_quantised_product, backend=backend_over(recorder), fullgraph=True)
    assert torch.equal(compiled(*_operands()), _quantised_product(*_operands()))
    (graph,) = recorder.graphs
    assert float8_nodes(graph) == []
    assert "float8" not in graph.code
    assert "uint8" in graph.code


def test_the_check_sees_float8_where_the_backend_is_absent() -> None:
    seen: list[fx.GraphModule] = []

    def look(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(graph)
        return graph

    plain = torch._dynamo.backends.common.aot_autograd(fw_compiler=look)
    torch.compile(_quantised_product, backend=plain, fullgraph=True)(*_operands())
    assert float8_nodes(seen[0])


def test_float8_arguments_and_results_are_bytes_inside_only() -> None:
    def turned(codes: torch.Tensor) -> torch.Tensor:
        return codes.t()[::2].contiguous()

    codes = ALL_CODES.view(16, 16).view(E4M3)
    result = torch.compile(turned, backend=BACKEND, fullgraph=True)(codes)
    assert result.dtype == E4M3
    assert torch.equal(result.view(torch.uint8), turned(codes).view(torch.uint8))


def test_another_float8_format_is_refused_by_name() -> None:
    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float8_e5m2).to(torch.float32)

    with pytest.raises(BackendCompilerFailed, match=r"UsageError: .*float8_e5m2"):
        torch.compile(cast, backend=BACKEND, fullgraph=True)(torch.ones(3))


def test_arithmetic_on_float8_is_refused_and_the_operation_named() -> None:
    def compared(codes: torch.Tensor) -> torch.Tensor:
        return codes == codes.flip(0)

    with pytest.raises(BackendCompilerFailed, match=r"UsageError: .*(eq|flip).*float8"):
        torch.compile(compared, backend=BACKEND, fullgraph=True)(ALL_CODES.view(E4M3))
