"""What the command line prints of price files is complete, and their mistakes are found before they cost."""
from __future__ import annotations

from pathlib import Path

import pytest

from gateway.metering import listing
from gateway.metering.listing import check, diff, nearest, show
from gateway.metering.prices import load

NOW_US = 1_794_744_000_000_000


def test_the_shipped_files_have_no_problem() -> None:
    """Ids unique, bands complete, aliases and likenesses known."""
    assert check() == []


def test_ids_are_unique_over_the_shipped_files() -> None:
    """History is priced again by id."""
    ids = [row.id for row in load().rows()]
    assert len(ids) == len(set(ids))


def test_show_gives_the_rows_in_force(tmp_path: Path) -> None:
    """Every tier and band, the operator's before ours, as it would be written."""
    path = tmp_path / "own.toml"
    path.write_text('[openai]\nrows = [{model = "gpt-5.5", input = "4", cached = "0.4", output = "20.5", source = "contract 7"}]\n')
    shown = show(load([path]), "openai", "gpt-5.5-2026-04-01", NOW_US)
    assert [row["id"] for row in shown] == [
        "own:openai/gpt-5.5@launch", "openai/gpt-5.5@2026-10-14#batch", "openai/gpt-5.5@2026-10-14#batch>272000",
        "openai/gpt-5.5@2026-10-12#flex", "openai/gpt-5.5@2026-10-12#flex>272000", "openai/gpt-5.5@2026-10-12#priority",
    ]
    assert shown[0]["prices"] == {"input": "4", "cached": "0.4", "output": "20.5"}
    assert shown[0]["source"] == "contract 7"
    assert shown[5]["upto"] == 272_000
    assert show(load(), "openai", "gpt-99", NOW_US) == []


def test_nearest_names() -> None:
    """For the message about a model without a price."""
    assert nearest(load(), "openai", "gpt-55")[0] == "gpt-5.5"
    assert "anthropic" in nearest(load(), "antropic", "")


@pytest.mark.parametrize(("row", "says"), [
    pytest.param('{model = "m", input = "1"}, {model = "m", input = "2"}', "stands there 2 times", id="a price changed in place"),
    pytest.param('{model = "m", over = 9, input = "1"}', "a band needs a row without", id="a band alone"),
    pytest.param('{model = "m", input = "1", valid_from = 2026-02-01, valid_to = 2026-01-01}', "valid_to lies before", id="ends before it begins"),
    pytest.param('{model = "m", input = "1", upto = 0}', "is not above over", id="an empty band"),
    pytest.param('{model = "m", inptu = "1"}', "did you mean 'input'?", id="a typo"),
])
def test_check_finds_mistakes(tmp_path: Path, row: str, says: str) -> None:
    """One line for each, with the file."""
    path = tmp_path / "own.toml"
    path.write_text(f"[acme]\nrows = [{row}]\n")
    problem = next(iter(check([path])))
    assert says in problem
    assert str(path) in problem


def test_check_finds_loose_ends(tmp_path: Path) -> None:
    """Names that lead nowhere, with the nearest that do."""
    path = tmp_path / "own.toml"
    path.write_text('[acme]\nlike = ["opnai"]\nrows = [{model = "big", input = "1"}]\n[acme.aliases]\n"large" = "bigg"\n')
    problems = check([path, tmp_path / "gone.toml"])
    assert len(problems) == 3
    assert "gone.toml" in problems[0]
    assert "did you mean 'openai'?" in problems[1]
    assert "did you mean 'big'?" in problems[2]


def test_the_example_in_the_documentation_is_right(tmp_path: Path) -> None:
    """What users copy works."""
    text = (Path(__file__).parents[2] / "docs" / "prices.md").read_text()
    path = tmp_path / "contract.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0])
    assert check([path]) == []
    assert show(load([path]), "vllm", "anything", NOW_US)[0]["id"] == "contract:vllm/*@launch"


def test_diff_shows_new_and_changed_rows(tmp_path: Path) -> None:
    """Before `tollway prices update` writes."""
    old, new = tmp_path / "a.toml", tmp_path / "b" / "a.toml"
    new.parent.mkdir()
    old.write_text('[acme]\nrows = [{model = "m", input = "1"}, {model = "n", input = "1"}, {model = "o", input = "1"}]\n')
    new.write_text('[acme]\nrows = [{model = "m", input = "1", source = "page"}, {model = "n", input = "2"}, {model = "m", input = "3", valid_from = 2026-12-01}]\n')
    changes = diff(load([old], built_in=False), load([new], built_in=False))
    assert [(c.row, c.before and c.before["prices"], c.after and c.after["prices"]) for c in changes] == [
        ("a:acme/m@2026-12-01", None, {"input": "3"}), ("a:acme/n@launch", {"input": "1"}, {"input": "2"}), ("a:acme/o@launch", {"input": "1"}, None),
    ]


def _file(folder: Path, *rows: str) -> Path:
    path = folder / "p.toml"
    path.write_text('[p]\nsource = "x"\nchecked_on = 2026-01-01\nrows = [\n' + "".join(f"  {{{row}}},\n" for row in rows) + "]\n")
    return path


@pytest.mark.parametrize(("rows", "problem"), [
    (['model = "x", input = "2500000", output = "1"'], "per million"),
    (['model = "x", input = "2500000", output = "1", extreme = true'], None),
    (['model = "x", input = "600", output = "10000"'], None),
    (['model = "x", input = "1", output = "2", valid_from = 2026-01-01, valid_to = 2026-06-30',
      'model = "x", input = "1", output = "2", valid_from = 2026-06-01'], "two prices"),
    (['model = "x", input = "1", output = "2", valid_from = 2026-01-01, valid_to = 2026-06-30',
      'model = "x", input = "1", output = "2", valid_from = 2026-07-01, valid_to = 2026-12-31'], None),
    (['model = "x", input = "1", output = "2", valid_from = 2026-01-01',
      'model = "x", input = "1", output = "2", valid_from = 2026-06-01'], None),
    (['model = "x", input = "1", output = "2", valid_from = 2026-01-01, valid_to = 2026-06-30',
      'model = "x", tier = "batch", input = "1", output = "2", valid_from = 2026-06-01'], None),
])  # fmt: skip
def test_prices_that_cannot_be_meant_are_refused(tmp_path: Path, rows: list[str], problem: str | None) -> None:
    """A price per token where one per million is meant, and two prices in force on one day; a later row takes over by itself."""
    found = listing.check([_file(tmp_path, *rows)])
    assert bool(found) == bool(problem)
    assert (problem or "") in "".join(found)
    assert listing.check([_file(tmp_path, rows[0])], allow_extreme=True) == []


def test_a_missing_price_for_cached_tokens_is_told(tmp_path: Path) -> None:
    assert "cached_price_missing" in listing.warnings([_file(tmp_path, 'model = "x", input = "1", output = "2"')])[0]
    assert listing.warnings([_file(tmp_path, 'model = "x", input = "1", cached = "0.1", output = "2"')]) == []
