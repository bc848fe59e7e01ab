"""Both ways to attend say what the textbook says, and no row notices how it was computed."""

from __future__ import annotations

import pytest
import torch

from inference.attention import Attention, Span
from inference.cache import Heads, KVCache

HEADS = Heads(query=6, key=2, size=16)


BLOCK = 16


def _naive(q: torch.Tensor, position: int, kv: torch.Tensor) -> torch.Tensor:
    keys, values = (kv[:, part].repeat_interleave(HEADS.shared, 1) for part in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", q, keys)
    seen = torch.arange(kv.shape[0])[None] <= position + torch.arange(q.shape[0])[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values).flatten(1)


class _Pages:
    """Sequences of random keys and values in scattered blocks; what lies behind them is poisoned."""

    def __init__(self, *lengths: int) -> None:
        generator = torch.Generator().manual_seed(4)
        self.cache = KVCache(1, sum(-(-n // BLOCK) for n in lengths), BLOCK, HEADS, torch.float32)
        free = (torch.randperm(self.cache.blocks, generator=generator) + 1).tolist()
        self.kv = [torch.randn(n, 2, HEADS.key, HEADS.size, generator=generator) for n in lengths]
        self.tables = [[free.pop() for _ in range(-(-n // BLOCK))] for n in lengths]
        self.cache.write(0, torch.tensor([0]), torch.full((1, 2 * HEADS.key, HEADS.size), 1e4))
        for kv, table in zip(self.kv, self.tables, strict=True):
            places = torch.arange(len(table) * BLOCK)
            slots = torch.tensor(table)[places // BLOCK] * BLOCK + places % BLOCK
            rows = torch.full((len(places), 2 * HEADS.key, HEADS.size), 1e4)
            rows[: len(kv)] = kv.flatten(1, 2)
            self.cache.write(0, slots, rows)

    def attend(self, attention: Attention, parts: list[tuple[int, torch.Tensor, bool]]) -> list[torch.Tensor]:
        """For (sequence, queries of its last rows, decode): what they see."""
        spans, row = [], 0
        for which, q, decode in parts:
            spans.append(Span(row, len(q), len(self.kv[which]) - len(q), self.tables[which], decode))
            row += len(q)
        q = torch.cat([*(q for _, q, _ in parts), torch.randn(3, HEADS.query, HEADS.size)])
        out = attention(0, q, self.cache, attention.plan(spans, self.cache))
        assert not out[row:].any(), "padding rows attend nothing"
        return [out[span.row : span.row + span.count] for span in spans]


def _queries(*counts: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(count, HEADS.query, HEADS.size, generator=generator) for count in counts]


@pytest.mark.parametrize(
    ("position", "count"), [(0, 1), (0, 64), (5, 3), (63, 2), (60, 140), (128, 64), (255, 1), (191, 9)]
)
def test_both_ways_are_the_textbooks(position: int, count: int) -> None:
    """Decoding and prefill agree with the plain formula, wherever the rows lie on the grid of tiles."""
    pages, attention, (q,) = _Pages(position + count), Attention(HEADS, 512), _queries(count)
    want = _naive(q, position, pages.kv[0])
    for decode in (False, True) if count < 20 else (False,):
        torch.testing.assert_close(pages.attend(attention, [(0, q, decode)])[0], want, atol=2e-5, rtol=1e-4)
        blockwise = pages.attend(Attention(HEADS, 512, most_keys=64), [(0, q, decode)])[0]
        torch.testing.assert_close(blockwise, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("most_keys", [512, 128, 64])
def test_a_mixed_step_is_the_sum_of_its_parts(most_keys: int) -> None:
    """Sequences of any lengths, decoding, verifying and in prefill, each attend their own keys only."""
    lengths, counts = (1, 40, 70, 300, 299, 130, 17), (1, 1, 5, 1, 3, 90, 1)
    pages, attention, qs = _Pages(*lengths), Attention(HEADS, 512, most_keys), _queries(*counts)
    parts = [(index, q, len(q) < 20) for index, q in enumerate(qs)]
    for (index, q, _), out in zip(parts, pages.attend(attention, parts), strict=True):
        want = _naive(q, lengths[index] - len(q), pages.kv[index])
        torch.testing.assert_close(out, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("most_keys", [512, 64])
def test_a_rows_bits_do_not_depend_on_its_company(most_keys: int) -> None:
    """One row or many, any chunking, any neighbours, keys at once or block by block: bit for bit the same."""
    attention, (q,) = Attention(HEADS, 512, most_keys), _queries(150)
    whole = _Pages(170).attend(attention, [(0, q, False)])[0]
    for start, end in ((0, 1), (3, 50), (40, 150), (149, 150)):
        pages = _Pages(170)
        pages.kv[0] = pages.kv[0][: 20 + end]
        assert torch.equal(pages.attend(attention, [(0, q[start:end], False)])[0], whole[start:end])
    if not attention.exact:
        pytest.skip("decode rows are not exact on this machine, and /health says so")
    pages, others = _Pages(132, 100, 250, 90), _queries(1, 2, 1)
    verified, kv = pages.attend(attention, [(0, q[:12], True)])[0], pages.kv[0]
    for row in range(12):
        pages.kv[0] = kv[: 121 + row]
        alone = [(0, q[row : row + 1], True)]
        assert torch.equal(pages.attend(attention, alone)[0][0], verified[row])
        crowd = [*alone, *((index, other, True) for index, other in enumerate(others, 1))]
        assert torch.equal(pages.attend(attention, crowd)[0][0], verified[row])
