"""NkiTensor: a strided view of a storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.interpreter import access_pattern, indexing, rearranging
from kernels.interpreter.dtypes import DType, dtype_of
from kernels.interpreter.errors import refuse
from kernels.interpreter.faces import Face, face_of
from kernels.interpreter.memory import ByteRange, MemoryRegion, Storage
from kernels.interpreter.registers import ScalarOffset, VectorOffset, VirtualRegister
from kernels.interpreter.strides import is_dense, product, reshaped_strides

__all__ = ["NkiTensor"]

Array = npt.NDArray[Any]
Offset = ScalarOffset | VectorOffset


class NkiTensor:
    """A tensor of NKI: storage, shape, strides and offset in elements, dtype.

    On chip dimension 0 is the partition dimension: it stays, and views are at least 2-D.
    """

    __slots__ = (
        "_array",
        "_cells",
        "_covers_all",
        "_face",
        "dtype",
        "name",
        "offset",
        "runtime_offset",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self,
        storage: Storage,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        dtype: DType,
        name: str = "",
        runtime_offset: Offset | None = None,
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dtype = dtype
        self.name = name
        self.runtime_offset = runtime_offset
        self._array: Array | None = None
        self._face: Face | None = None
        self._cells: ByteRange | None = None
        self._covers_all = False

    # -- properties -----------------------------------------------------------------------

    @property
    def buffer(self) -> MemoryRegion:
        """The memory it lives in."""
        return self.storage.region

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return product(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def on_chip(self) -> bool:
        """Whether it lives in SBUF or PSUM."""
        return not self.storage.region.is_hbm

    @property
    def free_elements(self) -> int:
        """Elements of its dtype in one partition of the storage."""
        return self.storage.partition_bytes // self.dtype.itemsize

    @property
    def face(self) -> Face:
        """Its interned description."""
        face = self._face
        if face is None:
            face = self._face = self._make_face()
        return face

    def is_contiguous(self) -> bool:
        """Whether its elements are adjacent in C order (on chip: within a partition)."""
        shape, strides = self.shape, self.strides
        if self.on_chip:
            shape, strides = shape[1:], strides[1:]
        step = 1
        for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], …] in elements."""
        return [[s, n] for s, n in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        """Whether its address depends on a run-time value."""
        return self.runtime_offset is not None

    # -- values ---------------------------------------------------------------------------

    @property
    def array(self) -> Array:
        """The elements as a numpy view of the storage."""
        array = self._array
        if array is not None:
            return array
        offset = self.offset
        if self.runtime_offset is not None:
            offset += self._runtime_elements()
        array = self._view_at(offset)
        if self.runtime_offset is None:
            self._array = array
        return array

    def read(self, operand: str) -> Array:
        """The elements, after checking that each was written."""
        storage = self.storage
        if storage.lifetime is not None:
            storage.lifetime.touch()
        elif storage.races is not None:
            storage.races.note_read(self._byte_range())
        if not storage.is_fully_written and not storage.holds(self._byte_range()):
            self._refuse_unwritten(operand)
        return self.array

    def wrote(self) -> None:
        """An instruction has written every element."""
        storage = self.storage
        if storage.lifetime is not None:
            storage.lifetime.touch()
        storage.note_write(self._byte_range(), self._covers_all)

    def forget_address(self) -> None:
        """The storage got another buffer."""
        self._array = None

    def written(self) -> Array:
        """The written flag of each element."""
        return self.storage.written(self._byte_range())

    def _byte_range(self) -> ByteRange:
        cells = self._cells
        if cells is not None:
            return cells
        itemsize = self.dtype.itemsize
        offset = self.offset
        if self.runtime_offset is not None:
            offset += self._runtime_elements()
        cells = ByteRange(
            self.shape,
            tuple([stride * itemsize for stride in self.strides]),
            offset * itemsize,
            itemsize,
        )
        if self.runtime_offset is None:
            self._cells = cells
            self._covers_all = self.size * itemsize == self.storage.nbytes and is_dense(
                self.shape, self.strides
            )
        return cells

    def _view_at(self, offset: int) -> Array:
        itemsize = self.dtype.itemsize
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype.carrier)
        return np.ndarray(
            self.shape,
            self.dtype.carrier,
            self.storage.buffer,
            offset * itemsize,
            tuple([stride * itemsize for stride in self.strides]),
        )

    def _runtime_elements(self) -> int:
        offset = self.runtime_offset
        if not isinstance(offset, ScalarOffset):
            refuse(
                self.name or "operand",
                "a view with vector_offset",
                "only DMA follows a vector offset",
                "gather into SBUF with nisa.dma_copy first",
            )
        index = offset.value()
        if not 0 <= index <= offset.limit:
            refuse(self.name or "operand", f"scalar offset {index}", f"0..{offset.limit}")
        return index * offset.scale

    def _refuse_unwritten(self, operand: str) -> None:
        written = self.written()
        first = tuple(int(i) for i in np.argwhere(~written)[0])
        count = int(written.size - np.count_nonzero(written))
        refuse(
            operand,
            f"{self.face} {self.storage.name!r} with {count} of {written.size} elements "
            f"never written, first at {list(first)}",
            "reading unwritten memory is undefined",
            f"write it first (allocated at {self.storage.site})",
        )

    def _make_face(self) -> Face:
        region = self.storage.region
        start_partition = start_bytes = 0
        partition_step = 1
        if not region.is_hbm:
            per_partition = self.storage.partition_bytes
            start_partition, start_bytes = divmod(
                self.offset * self.dtype.itemsize, max(per_partition, 1)
            )
            if self.shape[0] > 1:
                partition_step = self.strides[0] // max(self.free_elements, 1)
        runtime = self.runtime_offset
        indirect = "" if runtime is None else "scalar"
        if isinstance(runtime, VectorOffset):
            indirect = "vector"
        return face_of(
            self.shape,
            self.strides,
            self.dtype,
            region,
            start_partition,
            start_bytes,
            indirect,
            partition_step,
        )

    # -- views ----------------------------------------------------------------------------

    def derived(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        dtype: DType | None = None,
        runtime_offset: Offset | None = None,
    ) -> NkiTensor:
        """Another view of the same storage."""
        return NkiTensor(
            self.storage,
            shape,
            strides,
            offset,
            dtype or self.dtype,
            self.name,
            runtime_offset or self.runtime_offset,
        )

    def __getitem__(self, key: Any) -> NkiTensor:
        return indexing.index_view(self, key)

    def slice(self, dim: int, start: int, end: int | None = None, step: int = 1) -> NkiTensor:
        """Elements start, start+step, … below end of dimension `dim`."""
        return indexing.slice_dim(self, dim, start, end, step)

    def select(self, dim: int, index: int | VirtualRegister) -> NkiTensor:
        """One index of dimension `dim`; HBM drops the dimension."""
        return indexing.select_dim(self, dim, index)

    def permute(self, dims: tuple[int, ...] | list[int]) -> NkiTensor:
        """Reorder dimensions; the partition dimension stays first."""
        return rearranging.permute(self, tuple(dims))

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a dimension of extent 1 with stride 0."""
        return rearranging.broadcast(self, dim, size)

    def expand_dim(self, dim: int) -> NkiTensor:
        """Insert a dimension of extent 1."""
        return rearranging.expand_dim(self, dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Drop a dimension of extent 1."""
        return rearranging.squeeze_dim(self, dim)

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """Split dimension `dim` into `shape`; one -1 is inferred."""
        return rearranging.reshape_dim(self, dim, tuple(shape))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Join dimensions start_dim..end_dim (inclusive)."""
        return rearranging.flatten_dims(self, start_dim, end_dim)

    def reshape(self, shape: tuple[int, ...] | list[int]) -> NkiTensor:
        """The same elements in C order; never a copy."""
        new_shape = rearranging.inferred_shape(self, tuple(shape))
        if self.on_chip and new_shape[0] != self.shape[0]:
            refuse(
                "shape",
                list(new_shape),
                f"the partition dimension {self.shape[0]} stays first on chip",
            )
        strides = reshaped_strides(self.shape, self.strides, new_shape)
        if strides is None:
            refuse("shape", list(new_shape), "this view cannot be reshaped without a copy")
        if self.on_chip:
            strides = (self.strides[0], *strides[1:])
        return self.derived(new_shape, strides, self.offset)

    def rearrange(
        self,
        src_pattern: Any,
        dst_pattern: Any,
        fixed_sizes: dict[str, int] | None = None,
    ) -> NkiTensor:
        """Split, permute and join dimensions by name: ("p", ("a", "b")) -> ("p", "b", "a")."""
        return rearranging.rearrange(self, src_pattern, dst_pattern, fixed_sizes or {})

    def view(self, dtype: object) -> NkiTensor:
        """The same bytes as another dtype; the last dimension must be adjacent if sizes differ."""
        return rearranging.view_dtype(self, dtype)

    reinterpret_cast = view

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows chosen at run time: dimension 0 of an HBM tensor by a (P, 1) index tile."""
        return access_pattern.vector_select(self, dim, vector_offset)

    def ap(
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: object = None,
    ) -> NkiTensor:
        """An access pattern [[stride, count], …] over the storage."""
        return access_pattern.ap(
            self,
            pattern,
            offset,
            scalar_offset,
            vector_offset,
            indirect_dim,
            dtype_of(dtype) if dtype is not None else None,
        )

    def indirect(self, index: object, num_elem: object = None) -> NkiTensor:
        """Not on trn2."""
        refuse(".indirect", "called", "not available on trn2", "use .ap(vector_offset=…)")

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        refuse("tensor", "used as a condition", "its values exist only at run time")

    def __repr__(self) -> str:
        return f"NkiTensor({self.name!r}, {self.face})"
