"""Price files are read again when they change, and only when they are whole and good."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.core.usage import TokenUsage
from gateway.metering.price_files import PriceFiles
from gateway.metering.prices import Offer, PriceBook
from gateway.metering.rows import PriceFileError

TEXT = '[test]\nsource = "made up"\nchecked_on = 2026-01-01\nrows = [{{model = "m", input = "{}", output = "10"}}]\n'


def cost(book: PriceBook) -> int | None:
    return book.price(Offer("test", "m"), TokenUsage(uncached=1_000, output=0), 1_790_000_000_000_000).cost_nanos


def write(file: Path, text: str) -> None:
    """As editors do: another file takes the name, so that the signature differs however coarse the clock is."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


def test_a_change_counts_once_it_has_settled(tmp_path: Path) -> None:
    """Everyone who has the book has the new prices; what cannot be read is told once and changes nothing."""
    file = tmp_path / "p.toml"
    write(file, TEXT.format(2))
    files = PriceFiles([file])
    book = files.book
    assert (cost(book), book.dearest(Offer("test", "m"), 1_790_000_000_000_000, input_bound=1)) == (2_000_000, (2_000_000, 10_000_000))
    assert [files.changed(), files.changed()] == [None, None]
    write(file, TEXT.format(3))
    assert files.changed() is None, "it may be half written"
    fresh = files.changed()
    assert fresh is not None
    assert cost(book) == 2_000_000
    book.renew(fresh.files)
    assert (cost(book), book.dearest(Offer("test", "m"), 1_790_000_000_000_000, input_bound=1)) == (3_000_000, (3_000_000, 10_000_000))
    assert files.changed() is None


@pytest.mark.parametrize("bad", ["[test\n", TEXT.format(-1), None], ids=["no TOML", "below zero", "gone"])
def test_a_bad_file_changes_nothing(tmp_path: Path, bad: str | None) -> None:
    file = tmp_path / "p.toml"
    write(file, TEXT.format(2))
    files = PriceFiles([file])
    file.unlink() if bad is None else write(file, bad)
    assert files.changed() is None
    with pytest.raises(PriceFileError, match=r"p\.toml"):
        files.changed()
    assert files.problem is not None
    assert files.changed() is None, "it is read once, not twice a second"
    write(file, TEXT.format(4))
    fresh = files.changed() or files.changed()
    assert fresh is not None
    assert (cost(fresh), files.problem) == (4_000_000, None)
