"""A price file is read exactly, or refused with the file, the place and the nearest word."""
from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.metering.rows import PriceFileError, Row, read

ROW = '{model = "m", input = "1.25", output = "10"}'


def write(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


def one(folder: Path, row: str) -> Row:
    return read(write(folder, f"[acme]\nrows = [{row}]\n"))["acme"].rows[0]


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def test_money_is_exact(tmp_path: Path) -> None:
    """A decimal string becomes micro-dollars per million tokens; a fee per 1,000 becomes pico-dollars for one."""
    row = one(tmp_path, '{model = "m", input = "0.000001", output = "12.5", web_search = "10"}')
    assert row.rates == {"input": 1, "output": 12_500_000}
    assert row.fees == {"web_search_requests": 10_000_000_000}


@pytest.mark.parametrize(("row", "says"), [
    pytest.param('{model = "m", inptu = "1"}', "unknown field 'inptu'; did you mean 'input'?", id="a typo names the nearest field"),
    pytest.param('{model = "m", input = 1.25}', "must be a decimal in quotes", id="a bare number has lost digits"),
    pytest.param('{model = "m", input = "0.0000001"}', "at most 6 decimals", id="finer than a micro-dollar"),
    pytest.param('{model = "m", input = "-1"}', "at least 0", id="negative"),
    pytest.param('{model = "m", input = "a lot"}', "not a decimal number", id="words"),
    pytest.param('{model = "m", input = "NaN"}', "at least 0", id="not a number"),
    pytest.param('{model = "m"}', "has no price", id="nothing priced"),
    pytest.param('{input = "1"}', "a row needs a model", id="no model"),
    pytest.param('{model = "m", input = "1", valid_from = "2026-04-01"}', "must be a date like 2026-04-01", id="a date in quotes"),
    pytest.param('{model = "m", input = "1", hours = "1-4"}', "must look like 01:00-04:00", id="hours"),
    pytest.param('{model = "m", input = "1", hours = "01:00-04:00", days = "monday"}', "must look like mon-fri", id="days"),
])
def test_a_bad_row_says_where_and_what(tmp_path: Path, row: str, says: str) -> None:
    """The message names file, line, provider and model."""
    path = write(tmp_path, f'[acme]\nrows = [\n  {{model = "other", input = "1"}},\n  {row},\n]\n')
    with pytest.raises(PriceFileError) as caught:
        read(path)
    text = str(caught.value)
    assert says in text
    assert str(path) in text
    assert "[acme]" in text
    if "model" in row:
        assert "line 4" in text


@pytest.mark.parametrize(("text", "says"), [
    pytest.param(f"[acme]\nrow = [{ROW}]\n", "did you mean 'rows'?", id="section field"),
    pytest.param('acme = "free"\n', "must be a table", id="not a table"),
    pytest.param("[acme\n", "own.toml", id="not TOML"),
    pytest.param('[acme]\nregions = [{region = "eu", factor = "1.1"}]\n', "needs region, models and factor", id="region rule"),
])
def test_a_bad_section_says_what(tmp_path: Path, text: str, says: str) -> None:
    """Sections are checked like rows."""
    with pytest.raises(PriceFileError, match=r"own\.toml") as caught:
        read(write(tmp_path, text))
    assert says in str(caught.value)


def test_the_line_is_that_of_the_row_among_equals(tmp_path: Path) -> None:
    """Where a model has several rows the message points at the bad one."""
    path = write(tmp_path, f'[a]\nrows = [\n  {ROW},\n]\n[acme]\nrows = [\n  {ROW},\n  {{model = "m", tier = "flex", input = 1}},\n]\n')
    with pytest.raises(PriceFileError, match="line 8"):
        read(path)


def test_days_of_validity_are_whole_and_both_included(tmp_path: Path) -> None:
    """`valid_to` is the last day on which a row holds, in UTC."""
    row = one(tmp_path, '{model = "m", input = "1", valid_from = 2026-04-01, valid_to = 2026-04-30}')
    assert [row.active(us(t)) for t in ("2026-03-31T23:59:59", "2026-04-01", "2026-04-30T23:59:59", "2026-05-01")] == [False, True, True, False]
    assert row.id == "acme/m@2026-04-01"


def test_hours_hold_on_their_days_only(tmp_path: Path) -> None:
    """Peak hours are half-open, on working days, and not on days that are named."""
    row = one(tmp_path, '{model = "m", input = "1", hours = "01:00-04:00,22:00-24:00", days = "mon-fri", not_on = [2026-10-01]}')
    assert [row.active(us(t)) for t in (
        "2026-09-30T00:59:59", "2026-09-30T01:00:00", "2026-09-30T04:00:00", "2026-09-30T23:59:59", "2026-10-03T02:00:00", "2026-10-01T02:00:00",
    )] == [False, True, False, True, False, False]


def test_ids_tell_rows_apart(tmp_path: Path) -> None:
    """Everything that selects a row is in its id, and an operator's file has its name in front."""
    path = write(tmp_path, '[acme]\nrows = [{model = "M", tier = "flex", region = "eu", hours = "01:00-02:00", over = 9, input = "1"}]\n')
    assert read(path, "own")["acme"].rows[0].id == "own:acme/M@launch#flex#region:eu#hours>9"
