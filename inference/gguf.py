"""Read GGUF model files: typed metadata, a tensor table, and the quantized blocks as they lie on disk.

The file is not trusted: every count and length in it is bounded by what is left of the file before anything is
allocated, so a damaged or lying file ends in a named error (`files`), never in a crash or a huge allocation.
"""

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.files import BadValue, Damaged, MissingKey, NotGGUF, Truncated

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
# type id -> (name, weights in a block, bytes of a block)
_KINDS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    30: ("BF16", 1, 2),
}
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is rows first (the file stores it columns first)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix taken apart: weight = q * d + m (Q4_1) or q * d (Q8_0), with one d and m for 32 neighbours of a row."""

    q: Bytes | npt.NDArray[np.int8]
    d: Floats
    m: Floats | None = None


class GGUF:
    """An open file: `meta`, `tensors`, and access to the data by tensor name."""

    def __init__(self, data: mmap.mmap, meta: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self._data, self.meta, self.tensors = data, meta, tensors

    def info(self, name: str) -> TensorInfo:
        """The table entry of a tensor, or a named error."""
        if name not in self.tensors:
            raise MissingKey(f"there is no tensor {name!r}")
        return self.tensors[name]

    def raw(self, name: str) -> Bytes:
        """A private copy of a tensor's bytes."""
        info = self.info(name)
        return np.frombuffer(self._data, np.uint8, info.nbytes, info.start).copy()

    def dequantize(self, name: str) -> Floats:
        """A tensor as float32, whatever its kind. Raises `Damaged`."""
        info = self.info(name)
        with np.errstate(all="ignore"):
            return _finite(name, _DEQUANTIZE[info.kind](self.raw(name))).reshape(info.shape)

    def quantized(self, name: str) -> Quantized | None:
        """A Q4_1 or Q8_0 matrix as it lies in the file, for kernels that eat it so; None if it is neither."""
        info = self.info(name)
        if info.kind not in ("Q4_1", "Q8_0") or len(info.shape) != 2:
            return None
        rows, columns = info.shape
        blocks = self.raw(name).reshape(rows * columns // 32, -1)
        d = _finite(name, _f16(blocks[:, 0:2])).reshape(rows, -1)
        if info.kind == "Q8_0":
            return Quantized(blocks[:, 2:].copy().view(np.int8).reshape(rows, columns), d)
        m = _finite(name, _f16(blocks[:, 2:4])).reshape(rows, -1)
        return Quantized(_nibbles(blocks[:, 4:]).reshape(rows, columns), d, m)


def read_gguf(path: Path | str) -> GGUF:
    """Open a file, read its tables and check that every tensor lies inside it."""
    with open(path, "rb") as file:
        if file.seek(0, 2) < 24:
            raise NotGGUF("shorter than a GGUF header")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise NotGGUF("the first four bytes are not GGUF")
    cursor.at = 4
    version = cursor.scalar("<I")
    if version not in (2, 3):
        raise NotGGUF(f"version {version} is not 2 or 3")
    tensor_count = cursor.count(24)
    key_count = cursor.count(13)
    meta: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        if key in meta:
            raise BadValue(f"the key {key!r} comes twice")
        meta[key] = cursor.value(cursor.scalar("<I"))
    return GGUF(data, meta, _tensor_table(cursor, tensor_count, meta.get("general.alignment", 32)))


def _tensor_table(cursor: "_Cursor", count: int, alignment: object) -> dict[str, TensorInfo]:
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise BadValue(f"alignment {alignment!r} is not a power of two up to 65536")
    rows = [_tensor_row(cursor) for _ in range(count)]
    base = -(-cursor.at // alignment) * alignment
    table: dict[str, TensorInfo] = {}
    for name, shape, kind_id, offset in rows:
        if kind_id not in _KINDS:
            raise BadValue(f"tensor {name!r} has type {kind_id}, which this reader does not know")
        kind, per_block, block_bytes = _KINDS[kind_id]
        if name in table:
            raise BadValue(f"the tensor {name!r} comes twice")
        if not shape or min(shape) < 1 or shape[-1] % per_block or offset % alignment:
            raise BadValue(f"tensor {name!r} has shape {shape} at {offset}, which {kind} cannot have")
        nbytes = math.prod(shape) // per_block * block_bytes
        if base + offset + nbytes > cursor.size:
            raise Truncated(f"tensor {name!r} ends after the end of the file")
        table[name] = TensorInfo(name, shape, kind, base + offset, nbytes)
    return table


def _tensor_row(cursor: "_Cursor") -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dims = cursor.scalar("<I")
    if not 1 <= dims <= _MAX_DIMS:
        raise BadValue(f"tensor {name!r} has {dims} dimensions")
    shape = tuple(cursor.scalar("<Q") for _ in range(dims))[::-1]
    return name, shape, cursor.scalar("<I"), cursor.scalar("<Q")


class _Cursor:
    """A reading position that never leaves the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def take(self, nbytes: int) -> bytes:
        if nbytes > self.size - self.at:
            raise Truncated(f"{nbytes} bytes wanted at {self.at}, {self.size - self.at} left")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def count(self, least_bytes: int) -> int:
        """A number of things that take at least so many bytes each: more than fit is a lie."""
        count: int = self.scalar("<Q")
        if count * least_bytes > self.size - self.at:
            raise Truncated(f"{count} entries cannot fit into the {self.size - self.at} bytes left")
        return count

    def string(self) -> str:
        try:
            return self.take(self.count(1)).decode()
        except UnicodeDecodeError as error:
            raise Damaged(f"a string before byte {self.at} is not UTF-8") from error

    def value(self, kind: int, *, nested: bool = False) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or nested:
            raise BadValue(f"metadata type {kind} before byte {self.at} is unknown or nested")
        of = self.scalar("<I")
        if of in _SCALARS:
            return self._numbers(_SCALARS[of])
        return [self.value(of, nested=True) for _ in range(self.count(8))]

    def _numbers(self, code: str) -> list[Any]:
        width = struct.calcsize(code)
        count = self.count(width)
        return list(struct.unpack(f"<{count}{code[1]}", self.take(count * width)))


def _finite(name: str, numbers: Floats) -> Floats:
    if not np.isfinite(numbers).all():
        raise Damaged(f"tensor {name!r} holds numbers that are not finite")
    return numbers


def _nibbles(packed: Bytes) -> Bytes:
    """Sixteen bytes to 32 weights: byte j holds weight j low and weight j + 16 high."""
    return np.concatenate([packed & 0xF, packed >> 4], axis=1)


def _f16(blocks: Bytes) -> Floats:
    return blocks.copy().view(np.float16).astype(np.float32)


def _q4_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 18)
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 20)
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _f16(blocks[:, :2]) + _f16(blocks[:, 2:4])


def _q8_0(raw: Bytes) -> Floats:
    blocks = raw.reshape(-1, 34)
    return _f16(blocks[:, :2]) * blocks[:, 2:].copy().view(np.int8).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_DEQUANTIZE: dict[str, Callable[[Bytes], Floats]] = {
    "F32": lambda raw: raw.view(np.float32),
    "F16": _f16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "BF16": _bf16,
}
