"""Kinds of kernel: right against the plain product, and rows that do not notice each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from inference.gguf import Quantized
from inference.linear import KINDS, KindUnavailable, Linear, Matrix, RowGroups, choose


def _matrix(rows: int = 96, columns: int = 64) -> Matrix:
    chance = np.random.default_rng(5)
    q = chance.integers(0, 16, (rows, columns)).astype(np.uint8)
    d = (chance.random((rows, columns // 32)) * 0.02).astype(np.float16).astype(np.float32)
    m = -8 * d
    dense = q * np.repeat(d, 32, 1) + np.repeat(m, 32, 1)
    return Matrix(torch.from_numpy(dense.astype(np.float32)), lambda: Quantized(q, d, m))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_right_and_keeps_rows_apart(kind: str) -> None:
    """Any number of rows gives the plain product, and each row's bits are those it has in any other company."""
    matrix = _matrix()
    try:
        choice = choose(kind, [matrix])
    except KindUnavailable as error:  # pragma: no cover - fp32 always works
        pytest.skip(str(error))
    if choice.kind != kind:
        pytest.skip(choice.report[kind])
    linear = Linear(matrix, kind, choice.groups)
    x = torch.randn(250, 64, generator=torch.Generator().manual_seed(1))
    whole: torch.Tensor | None = None
    for count in (250, 1, 2, 3, 7, 14, 31, 96, 97, 200):
        rows = F.pad(x[:count], (0, 0, 0, choice.groups.padded(count) - count))
        out = linear(rows)[:count]
        whole = out if whole is None else whole
        want = F.linear(x[:count], matrix.dense)
        assert float((out - want).norm() / want.norm()) < 0.02
        if choice.groups.exact:
            assert torch.equal(out, whole[:count])


@pytest.mark.parametrize(
    ("rows", "want"), [(0, ()), (1, (4,)), (4, (4,)), (5, (8,)), (13, (12, 4)), (24, (12, 12)), (29, (12, 12, 8))]
)
def test_rows_are_cut_into_allowed_groups(rows: int, want: tuple[int, ...]) -> None:
    """Whole largest groups, then the smallest that holds the rest."""
    assert RowGroups((4, 8, 12), exact=True).split(rows) == want


def test_an_unavailable_kind_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind whose operators are missing or wrong is replaced by fp32, and the report tells."""

    def missing(matrix: Matrix) -> object:
        raise RuntimeError("no such operator")

    monkeypatch.setitem(KINDS, "bf16", missing)
    monkeypatch.setitem(KINDS, "fp16", lambda matrix: lambda x: F.linear(x, matrix.dense) * 1.1)
    choice = choose("bf16", [_matrix()])
    assert choice.kind == "fp32"
    assert "no such operator" in choice.report["bf16"]
    assert "relative error" in choose("auto", [_matrix()]).report["fp16"]
