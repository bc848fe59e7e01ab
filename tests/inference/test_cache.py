"""A cache gives back what was written, as far as its number form can, and a block can be moved byte for byte."""

from __future__ import annotations

import pytest
import torch

from inference.cache import KV_FORMS, Heads, KVCache

HEADS = Heads(query=6, key=2, size=16)
BLOCK = 16


def _filled(form: str) -> tuple[KVCache, torch.Tensor]:
    cache = KVCache(2, 5, BLOCK, HEADS, KV_FORMS[form])
    rows = torch.randn(3 * BLOCK, 2 * HEADS.key, HEADS.size, generator=torch.Generator().manual_seed(1)) * 3
    slots = torch.arange(2 * BLOCK, 5 * BLOCK)
    for layer in range(2):
        cache.write(layer, slots, rows * (layer + 1))
    return cache, rows


@pytest.mark.parametrize(("form", "error"), [("fp32", 0), ("fp16", 5e-4), ("bf16", 4e-3), ("int8", 4e-3)])
def test_rows_come_back_within_the_forms_error(form: str, error: float) -> None:
    """Relative to the largest number of a row: half a step of the form."""
    cache, rows = _filled(form)
    for layer in range(2):
        keys, values = cache.gather(layer, cache.places(torch.tensor([[2, 3, 4]])))
        found = torch.cat((keys, values)).transpose(0, 1) / (layer + 1)
        assert ((found - rows).abs() <= error * rows.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("form", KV_FORMS)
def test_a_block_can_be_moved(form: str) -> None:
    """Its bytes written as another block are the same keys and values, in every layer; the size is what is told."""
    cache, _ = _filled(form)
    data = cache.read_block(3)
    assert data.numel() == cache.block_bytes == cache.bytes_per_token * BLOCK
    cache.write_block(1, data)
    for layer in range(2):
        (k3, v3), (k1, v1) = (cache.gather(layer, cache.places(torch.tensor([[block]]))) for block in (3, 1))
        assert torch.equal(k3, k1)
        assert torch.equal(v3, v1)
