import json

import pytest
from click.testing import CliRunner

from gateway.cli import main

CALLS = "".join(
    json.dumps({"at_s": n * 0.4, "prompt_tokens": 3_000, "output_tokens": 60, "session": f"s{n % 40}", "blocks": [n % 40]}) + "\n"
    for n in range(400)
)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Runs the command in a folder with two policy folders and a trace."""
    monkeypatch.chdir(tmp_path)
    for name, lanes in (("old", "[standard]"), ("new", "[flex, standard]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(f"team: a\nclasses: {{batch: {{lanes: {lanes}}}}}\ndefault_class: batch\n")
    (tmp_path / "calls.jsonl").write_text(CALLS)
    return lambda *args: CliRunner().invoke(main, ["policy", "backtest", *args])


def test_it_says_what_a_change_saves_and_how_sure_that_is(told):
    """In dollars, by the interval too; the old run is made in a process of its own."""
    found = json.loads(told("old", "new", "--trace", "calls.jsonl", "--json").stdout)
    cost = found["all"]["cost_usd"]
    assert found["calls"] == 400
    assert cost["new"] < cost["old"]
    assert cost["change_95"][0] <= cost["change"] <= cost["change_95"][1] < 0
    assert found["all"]["new"]["lanes"] == {"provider/flex": 400}
    assert [(group["team"], group["class"]) for group in found["groups"]] == [("a", "batch")]


def test_a_table_for_a_pull_request(told):
    """Markdown: as many columns in each row, and both runs' lanes."""
    text = told("old", "new", "--trace", "calls.jsonl", "--markdown", "--calls", "50").stdout
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6}
    assert "| cost, USD |" in text
    assert "lanes, new: provider/flex 50" in text


@pytest.mark.parametrize(("args", "says"), [
    (("old", "new"), "nothing to replay"),
    (("old", "new", "--trace", "calls.jsonl", "--mix", "bathc=1"), "there is no class 'bathc'"),
    (("old", "new", "--trace", "calls.jsonl", "--mix", "batch"), "is not CLASS=SHARE"),
    (("old", "new", "--trace", "calls.jsonl", "--mix", "batch=2"), "must add up"),
    (("old", "new", "--trace", "old/a.yaml"), "is neither JSON lines nor a CSV"),
    (("old", "nowhere", "--trace", "calls.jsonl"), "does not exist"),
    (("old", "new", "--config", "none.yaml"), "there is no such file"),
])
def test_what_cannot_be_replayed_is_told(told, args, says):
    """With the way out, and never a stack trace."""
    answer = told(*args)
    assert answer.exit_code != 0
    assert says in answer.output
    assert "Traceback" not in answer.output


def test_a_run_in_parts_says_the_same(told, tmp_path):
    """Shards meet the same luck as one run; what differs is what an hour of warming up does not bring back."""
    (tmp_path / "long.jsonl").write_text(
        "".join(json.dumps({"at_s": n * 2.0, "prompt_tokens": 900, "output_tokens": 60}) + "\n" for n in range(3_000))
    )
    whole, parts = (json.loads(told("old", "new", "--trace", "long.jsonl", "--json", *more).stdout) for more in ((), ("--shards", "3")))
    assert parts["calls"] == whole["calls"] == 3_000
    for which in ("old", "new"):
        assert parts["all"]["cost_usd"][which] == pytest.approx(whole["all"]["cost_usd"][which], rel=1e-3)
        assert parts["all"]["first_token_p95_s"][which] == pytest.approx(whole["all"]["first_token_p95_s"][which], rel=0.03)


def test_ray_is_asked_for_where_it_is_missing(told, monkeypatch):
    """With the way to get it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = told("old", "new", "--trace", "calls.jsonl", "--engine", "ray")
    assert answer.exit_code == 1
    assert "pip install 'tollway[ray]'" in answer.output
