"""Views that change a tensor's dimensions without moving a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernels.interpreter.dtypes import dtype_of
from kernels.interpreter.errors import refuse
from kernels.interpreter.strides import product

if TYPE_CHECKING:
    from kernels.interpreter.tensor import NkiTensor

__all__ = [
    "broadcast",
    "expand_dim",
    "flatten_dims",
    "inferred_shape",
    "permute",
    "rearrange",
    "reshape_dim",
    "squeeze_dim",
    "view_dtype",
]

Shape = tuple[int, ...]


def _dim(tensor: NkiTensor, dim: int, extra: int = 0) -> int:
    rank = len(tensor.shape) + extra
    if not -rank <= dim < rank:
        refuse("dim", dim, f"the tensor has {len(tensor.shape)} dimensions")
    return dim % rank


def _keep_partition(tensor: NkiTensor, dim: int, what: str) -> None:
    if tensor.on_chip and dim == 0:
        refuse("dim", 0, f"{what} cannot touch the partition dimension on chip")


def inferred_shape(tensor: NkiTensor, shape: Shape) -> Shape:
    """`shape` with one -1 filled in; its product is the tensor's size."""
    size = tensor.size
    if -1 in shape:
        rest = product(tuple(extent for extent in shape if extent != -1))
        shape = tuple(size // max(rest, 1) if extent == -1 else extent for extent in shape)
    if product(shape) != size or (tensor.on_chip and len(shape) < 2):
        refuse(
            "shape", list(shape), f"{size} elements of {list(tensor.shape)}, at least 2-D on chip"
        )
    return shape


def permute(tensor: NkiTensor, dims: Shape) -> NkiTensor:
    """Dimensions in the order `dims`."""
    if sorted(dims) != list(range(len(tensor.shape))):
        refuse("dims", list(dims), f"a permutation of 0..{len(tensor.shape) - 1}")
    if tensor.on_chip and dims[0] != 0:
        refuse("dims", list(dims), "the partition dimension stays first on chip", "nc_transpose")
    return tensor.derived(
        tuple(tensor.shape[dim] for dim in dims),
        tuple(tensor.strides[dim] for dim in dims),
        tensor.offset,
    )


def broadcast(tensor: NkiTensor, dim: int, size: int) -> NkiTensor:
    """Stride 0 on a dimension of extent 1."""
    dim = _dim(tensor, dim)
    if tensor.on_chip and dim == 0:
        refuse(
            "dim",
            0,
            "partitions cannot be broadcast on chip",
            "replicate by DMA with stride 0 on dimension 0 of an HBM source, or nc_stream_shuffle",
        )
    if tensor.shape[dim] != 1:
        refuse("dim", f"{dim} of extent {tensor.shape[dim]}", "only extent 1 broadcasts")
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[dim], strides[dim] = size, 0
    return tensor.derived(tuple(shape), tuple(strides), tensor.offset)


def expand_dim(tensor: NkiTensor, dim: int) -> NkiTensor:
    """A new dimension of extent 1 at position `dim`."""
    dim = _dim(tensor, dim, extra=1)
    _keep_partition(tensor, dim, "expand_dim")
    shape = (*tensor.shape[:dim], 1, *tensor.shape[dim:])
    strides = (*tensor.strides[:dim], 1, *tensor.strides[dim:])
    return tensor.derived(shape, strides, tensor.offset)


def squeeze_dim(tensor: NkiTensor, dim: int) -> NkiTensor:
    """Without the dimension `dim` of extent 1."""
    dim = _dim(tensor, dim)
    _keep_partition(tensor, dim, "squeeze_dim")
    if tensor.shape[dim] != 1:
        refuse("dim", f"{dim} of extent {tensor.shape[dim]}", "only extent 1 can be dropped")
    if tensor.on_chip and len(tensor.shape) == 2:
        refuse("dim", dim, "on-chip tensors have at least 2 dimensions")
    shape = tensor.shape[:dim] + tensor.shape[dim + 1 :]
    strides = tensor.strides[:dim] + tensor.strides[dim + 1 :]
    return tensor.derived(shape, strides, tensor.offset)


def reshape_dim(tensor: NkiTensor, dim: int, shape: Shape) -> NkiTensor:
    """Dimension `dim` split into `shape`."""
    dim = _dim(tensor, dim)
    _keep_partition(tensor, dim, "reshape_dim")
    extent = tensor.shape[dim]
    if -1 in shape:
        rest = product(tuple(part for part in shape if part != -1))
        shape = tuple(extent // max(rest, 1) if part == -1 else part for part in shape)
    if product(shape) != extent:
        refuse("shape", list(shape), f"dimension {dim} has {extent} elements")
    step = tensor.strides[dim]
    strides: list[int] = []
    for part in reversed(shape):
        strides.insert(0, step)
        step *= part
    return tensor.derived(
        (*tensor.shape[:dim], *shape, *tensor.shape[dim + 1 :]),
        (*tensor.strides[:dim], *strides, *tensor.strides[dim + 1 :]),
        tensor.offset,
    )


def flatten_dims(tensor: NkiTensor, start_dim: int, end_dim: int) -> NkiTensor:
    """Dimensions start_dim..end_dim as one."""
    first, last = _dim(tensor, start_dim), _dim(tensor, end_dim)
    if first < last:
        _keep_partition(tensor, first, "flatten_dims")
    joined = product(tensor.shape[first : last + 1])
    shape = (*tensor.shape[:first], joined, *tensor.shape[last + 1 :])
    return tensor.reshape(shape)


def view_dtype(tensor: NkiTensor, dtype: object) -> NkiTensor:
    """The same bytes as `dtype`."""
    new = dtype_of(dtype)
    if new is None:
        refuse("dtype", repr(dtype), "a dtype of nki.language")
    if tensor.dtype.is_widened and new != tensor.dtype:
        refuse("dtype", f"{new} of {tensor.dtype}", "bits do not exist with NKI_PRECISE_FP=0")
    old_size, new_size = tensor.dtype.itemsize, new.itemsize
    if old_size == new_size:
        return tensor.derived(tensor.shape, tensor.strides, tensor.offset, new)
    if tensor.runtime_offset is not None:
        refuse("dtype", new, "view the tensor before giving it a run-time offset")
    last_bytes = tensor.shape[-1] * old_size
    steps = [stride * old_size for stride in tensor.strides[:-1]]
    adjacent = tensor.strides[-1] == 1 or tensor.shape[-1] == 1
    offset = tensor.offset * old_size
    if not adjacent or any(value % new_size for value in (*steps, last_bytes, offset)):
        refuse("dtype", new, f"the last dimension of {tensor.face} does not divide into {new}")
    shape = (*tensor.shape[:-1], last_bytes // new_size)
    strides = (*(step // new_size for step in steps), 1)
    return tensor.derived(shape, strides, offset // new_size, new)


def rearrange(tensor: NkiTensor, source: Any, target: Any, sizes: dict[str, int]) -> NkiTensor:
    """Split, permute and join by names, as in ("p", ("a", "b")) -> ("p", "b", "a")."""
    groups = [_names(group) for group in _pattern(source)]
    if len(groups) != len(tensor.shape):
        refuse("src_pattern", source, f"one entry for each of {len(tensor.shape)} dimensions")
    view, dim, order = tensor, 0, []
    for group, extent in zip(groups, tensor.shape, strict=True):
        parts = _part_sizes(group, extent, sizes)
        if len(group) != 1:
            view = reshape_dim(view, dim, parts)
        order.extend(group)
        dim += len(group)
    wanted = [_names(group) for group in _pattern(target)]
    flat = [name for group in wanted for name in group]
    if sorted(flat) != sorted(order):
        refuse("dst_pattern", target, f"the names {order}")
    view = permute(view, tuple(order.index(name) for name in flat))
    for position, group in enumerate(wanted):
        if len(group) > 1:
            view = flatten_dims(view, position, position + len(group) - 1)
    return view


def _pattern(pattern: Any) -> list[Any]:
    if isinstance(pattern, str):
        text = pattern.replace("(", " ( ").replace(")", " ) ").split()
        groups: list[Any] = []
        inside: list[str] | None = None
        for word in text:
            if word == "(":
                inside = []
            elif word == ")":
                groups.append(tuple(inside or ()))
                inside = None
            elif inside is not None:
                inside.append(word)
            else:
                groups.append(word)
        return groups
    return list(pattern)


def _names(group: Any) -> list[str]:
    return [group] if isinstance(group, str) else list(group)


def _part_sizes(group: list[str], extent: int, sizes: dict[str, int]) -> Shape:
    known = product(tuple(sizes[name] for name in group if name in sizes))
    unknown = [name for name in group if name not in sizes]
    if len(unknown) > 1 or extent % max(known, 1):
        refuse("fixed_sizes", sizes, f"sizes that divide {extent} for {group}")
    return tuple(sizes.get(name, extent // max(known, 1)) for name in group)
