"""Both ways to attend say what the textbook says, and no row notices how it was computed."""

from __future__ import annotations

import pytest
import torch

from inference.attention import TILE, Attention, Heads, KVCache, Span, keys_needed

HEADS = Heads(query=6, key=2, size=16)


def _naive(q: torch.Tensor, position: int, kv: torch.Tensor) -> torch.Tensor:
    keys, values = (kv[:, part].repeat_interleave(HEADS.shared, 1) for part in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * HEADS.size**-0.5
    seen = torch.arange(kv.shape[0])[None] <= position + torch.arange(q.shape[0])[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values)


@pytest.mark.parametrize(
    ("position", "count"), [(0, 1), (0, 64), (5, 3), (63, 2), (60, 140), (128, 64), (255, 1), (191, 9)]
)
def test_both_ways_are_the_textbooks(position: int, count: int) -> None:
    """Decoding and prefill agree with the plain formula, wherever the rows lie on the grid of tiles."""
    attention, generator = Attention(HEADS, 512), torch.Generator().manual_seed(4)
    kv = torch.randn(keys_needed(position, count), 2, HEADS.key, HEADS.size, generator=generator)
    q = torch.randn(count, HEADS.query, HEADS.size, generator=generator)
    want = _naive(q, position, kv)
    for way in (attention.prefill, *([attention.decode] if count < 20 else [])):
        torch.testing.assert_close(way(q, position, kv), want, atol=2e-5, rtol=1e-4)


def test_a_rows_bits_do_not_depend_on_its_company() -> None:
    """One row or many, any chunking: bit for bit the same."""
    attention, generator = Attention(HEADS, 512), torch.Generator().manual_seed(4)
    kv = torch.randn(5 * TILE, 2, HEADS.key, HEADS.size, generator=generator)
    q = torch.randn(150, HEADS.query, HEADS.size, generator=generator)
    whole = attention.prefill(q, 20, kv)
    for start, end in ((0, 1), (3, 50), (40, 150), (149, 150)):
        part = attention.prefill(q[start:end], 20 + start, kv[: keys_needed(20 + start, end - start)])
        assert torch.equal(part, whole[start:end])
    if not attention.exact:
        pytest.skip("decode rows are not exact on this machine, and /health says so")
    verified = attention.decode(q[:12], 120, kv[: keys_needed(120, 12)])
    for row in range(12):
        assert torch.equal(
            attention.decode(q[row : row + 1], 120 + row, kv[: keys_needed(120 + row, 1)])[0], verified[row]
        )


def test_pages_are_found_where_the_table_says() -> None:
    """Rows written to scattered blocks are attended in the order of the table, the null block behind is masked."""
    cache, attention = KVCache(1, 8, 16, HEADS, torch.float32), Attention(HEADS, 128)
    kv = torch.randn(20, 2, HEADS.key, HEADS.size)
    q = torch.randn(20, HEADS.query, HEADS.size)
    slots = torch.tensor([7 * 16 + i for i in range(16)] + [2 * 16 + i for i in range(4)])
    cache.write(0, slots, kv)
    cache.write(0, torch.tensor([0]), kv[:1] + 100)
    span = Span(0, 20, 0, torch.tensor([7, 2, 0, 0]), decode=False)
    torch.testing.assert_close(attention(0, q, cache, [span]), _naive(q, 0, kv), atol=2e-5, rtol=1e-4)
