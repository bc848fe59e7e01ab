"""Matrix products with model weights: the kinds of kernel, which of them is right here, and which keeps rows apart.

What would surprise: a row's bits may depend on how many rows are multiplied with it. A kernel's `RowGroups` say which
row counts give the same bits for every row; callers pad to those, so that speculation, batching and chunking never
change an answer. Both facts are measured when the model is loaded, on the machine that will run it.

Kinds: `fp16` keeps weights in half precision and computes in float32 (fbgemm; x86 with AVX2 and up), `bf16` uses
oneDNN's packed bfloat16 (fast only with AVX512-BF16), `int4` feeds Q4_1 blocks to torch's int4 kernel as they are
(small, but slow for many rows), `fp32` is the plain one that always works. All take and give float32.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.gguf import Quantized

log = logging.getLogger(__name__)

Product = Callable[[Tensor], Tensor]
_LADDER = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 30, 36, 42, 48, 54, 60, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256)
_INT4_GROUP = 32


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [out, in]: dense float32, and a way to its quantized blocks where the file has them."""

    dense: Tensor
    quantized: Callable[[], Quantized | None] = lambda: None


class KindUnavailable(RuntimeError):
    """This machine or this file cannot do the kind; the text says why."""


@dataclass(frozen=True)
class RowGroups:
    """The row counts a kernel may be called with so that no row's bits depend on the others."""

    sizes: tuple[int, ...]
    exact: bool

    def padded(self, rows: int) -> int:
        """The number of rows to really compute for so many wanted ones."""
        return sum(self.split(rows))

    @lru_cache(maxsize=1024)  # noqa: B019 - a handful of these live as long as the process
    def split(self, rows: int) -> tuple[int, ...]:
        """The calls to make: whole groups of the largest size, then the smallest that holds the rest."""
        whole, rest = divmod(rows, self.sizes[-1])
        tail = [next(size for size in self.sizes if size >= rest)] if rest else []
        return (self.sizes[-1],) * whole + tuple(tail)


class Linear:
    """One weight, ready to multiply. Rows must come padded to `groups.padded(rows)`."""

    def __init__(self, matrix: Matrix, kind: str, groups: RowGroups) -> None:
        self._product, self.groups = KINDS[kind](matrix), groups

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], group by group."""
        sizes = self.groups.split(rows.shape[0])
        if len(sizes) == 1:
            return self._product(rows)
        return torch.cat([self._product(part) for part in torch.split(rows, list(sizes))])


@dataclass(frozen=True, slots=True)
class Choice:
    """The kind that was chosen, its row groups, and what the self-check said of each kind it looked at."""

    kind: str
    groups: RowGroups
    report: dict[str, str]


def choose(wanted: str, samples: Sequence[Matrix]) -> Choice:
    """The wanted kind, or for `auto` the first that is correct, exact and not slower than plain fp32; logged."""
    report: dict[str, str] = {}
    for kind in _AUTO if wanted == "auto" else (wanted, "fp32"):
        try:
            groups, note, slow = _check(kind, samples)
        except KindUnavailable as error:
            report[kind] = f"unavailable: {error}"
            log.warning("weights %s unavailable: %s", kind, error)
            continue
        report[kind] = note
        log.info("weights %s: %s", kind, note)
        if wanted != "auto" or kind == "fp32" or (groups.exact and not slow):
            if kind != wanted and wanted != "auto":
                log.warning("weights %s wanted, using %s", wanted, kind)
            return Choice(kind, groups, report)
    raise KindUnavailable(f"no kind of weights works here: {report}")


def _check(kind: str, samples: Sequence[Matrix]) -> tuple[RowGroups, str, bool]:
    """Try a kind on sample matrices: right against F.linear, exact for which row counts, how fast."""
    try:
        products = [KINDS[kind](sample) for sample in samples]
        error = max(_error(product, sample.dense) for product, sample in zip(products, samples, strict=True))
    except KindUnavailable:
        raise
    except Exception as cause:  # private torch operators: anything may be missing, that is what we find out here
        raise KindUnavailable(f"{type(cause).__name__}: {str(cause)[:200]}") from cause
    if not error < _TOLERANCE[kind]:
        raise KindUnavailable(f"relative error {error:.2g} against F.linear, allowed {_TOLERANCE[kind]}")
    widths = [sample.dense.shape[1] for sample in samples]
    groups = _row_groups(products, widths)
    took = _seconds(products, widths, groups.padded(8))
    plain = _seconds([partial(F.linear, weight=sample.dense) for sample in samples], widths, 8)
    note = (
        f"error {error:.1e}, {'exact' if groups.exact else 'NOT exact'} in groups of {groups.sizes[0]} to "
        f"{groups.sizes[-1]}, 8 rows {took * 1e3:.2f} ms (plain fp32 {plain * 1e3:.2f} ms)"
    )
    return groups, note, took > 1.2 * plain


def _error(product: Product, dense: Tensor) -> float:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, dense.shape[1], generator=generator)
    want = F.linear(x, dense)
    return float((product(x) - want).norm() / want.norm())


def _row_groups(products: Sequence[Product], widths: Sequence[int]) -> RowGroups:
    """The largest set of row counts that agree, bit for bit, on a row repeated at every place, for all samples."""
    classes: dict[tuple[bytes, ...], list[int]] = {}
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(1, width, generator=generator) for width in widths]
    for size in _LADDER:
        outs = [product(x.expand(size, -1).contiguous()) for product, x in zip(products, inputs, strict=True)]
        if all(bool((out == out[:1]).all()) for out in outs):
            key = tuple(out[0].view(torch.uint8).numpy().tobytes() for out in outs)
            classes.setdefault(key, []).append(size)
    best = max(classes.values(), key=len, default=[])
    if not best or best[0] > 8:
        return RowGroups(_LADDER, exact=False)
    return RowGroups(tuple(best), exact=True)


def _seconds(products: Sequence[Product], widths: Sequence[int], rows: int) -> float:
    inputs = [torch.ones(rows, width) for width in widths]
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for product, x in zip(products, inputs, strict=True):
            product(x)
        best = min(best, time.perf_counter() - start)
    return best


def _fp32(matrix: Matrix) -> Product:
    weight = matrix.dense
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return lambda x: F.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _fp16(matrix: Matrix) -> Product:
    packed = torch.ops.quantized.linear_prepack_fp16(matrix.dense, None)
    multiply = torch.ops.quantized.linear_dynamic_fp16
    return lambda x: multiply(x, packed)


def _bf16(matrix: Matrix) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(matrix.dense.bfloat16(), 1)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda x: multiply(x.bfloat16(), packed, None, "none", [], "").float()


def _int4(matrix: Matrix) -> Product:
    """Q4_1 without re-quantizing: the kernel computes (q - 8) * scale + zero, so zero = m + 8 d. Others stay fp16."""
    blocks = matrix.quantized()
    if blocks is None or blocks.m is None:
        return _fp16(matrix)
    q = torch.from_numpy(blocks.q).to(torch.int32)
    d, m = torch.from_numpy(blocks.d), torch.from_numpy(blocks.m)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
    scales = torch.stack([d.t(), (m + 8 * d).t()], dim=-1).bfloat16().contiguous()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return lambda x: multiply(x.bfloat16(), packed, _INT4_GROUP, scales).float()


KINDS: dict[str, Callable[[Matrix], Product]] = {"fp32": _fp32, "fp16": _fp16, "bf16": _bf16, "int4": _int4}
_AUTO = ("fp16", "bf16", "int4", "fp32")
_TOLERANCE = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 2e-2, "int4": 2e-2}
