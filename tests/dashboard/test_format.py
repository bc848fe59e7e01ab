"""Figures read well at every size and never lie."""
from __future__ import annotations

import csv
import io

import pytest

from dashboard import format


@pytest.mark.parametrize(("nanos", "text"), [
    (None, "not priced"), (0, "$0.00"), (1, "$0.000000001"), (350_780, "$0.000351"), (12_345_678, "$0.0123"), (999_000_000, "$0.999"),
    (1_000_000_000, "$1.00"), (1_234_567_890_000, "$1,234.57"), (-2_500_000_000, "-$2.50"), (-5_000_000, "-$0.00500"),
])  # fmt: skip
def test_dollars(nanos: int | None, text: str) -> None:
    assert format.usd(nanos) == text


@pytest.mark.parametrize(("nanos", "text"), [
    (None, "not priced"), (0, "$0.000000000"), (12_345_678, "$0.012345678"), (-1_234_000_000_001, "-$1,234.000000001"),
])  # fmt: skip
def test_exact_dollars(nanos: int | None, text: str) -> None:
    assert format.exact(nanos) == text


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0.04, "0.0 ms"), (8.25, "8.2 ms"), (412.3, "412 ms"), (1_890.3, "1.89 s"), (61_000, "61.00 s"), (600_000, "10.0 min"),
])  # fmt: skip
def test_milliseconds(value: float | None, text: str) -> None:
    assert format.ms(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (9_999, "9,999"), (12_345, "12.3 k"), (999_600, "1 M"), (7_280_000, "7.28 M"), (3_200_000_000, "3.2 G"),
])  # fmt: skip
def test_counts(value: int, text: str) -> None:
    assert format.count(value) == text


@pytest.mark.parametrize(("now", "before", "text"), [
    (118, 100, "+18 %"), (50, 100, "-50 %"), (None, 100, None), (5, None, None), (5, 0, None), (100.4, 100, None), (5_000, 1, "5,000 times"),
])  # fmt: skip
def test_changes(now: float | None, before: float | None, text: str | None) -> None:
    assert format.change(now, before) == text


def test_shares() -> None:
    assert (format.share(0.6238), format.share(None), format.points(0.5, 0.48), format.points(None, 1)) == ("62.4 %", "-", "+2.0 points", None)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_cells_are_never_formulas(text: str) -> None:
    """Neither in cells nor in headings."""
    made = format.to_csv([{text: text, "n": -5}], [text, "n"]).decode()
    assert list(csv.reader(io.StringIO(made, newline=""))) == [[f"'{text}", "n"], [f"'{text}", "-5"]]


def test_csv_keeps_every_figure() -> None:
    assert format.to_csv([{"a": 'x,"y"', "b": None, "c": 0.5}], ["a", "b", "c"]) == b'a,b,c\r\n"x,""y""",,0.5\r\n'


def test_data_is_not_markdown() -> None:
    assert format.plain("**a** [x](y) $1 `c`") == r"\*\*a\*\* \[x\]\(y\) \$1 \`c\`"
