import json

import pytest
from click.testing import CliRunner

from gateway.cli import main

CONFIG = """
backends:
  openai:
    dialect: openai
    url: https://api.openai.com/v1
    key: env:SURELY_NOT_SET_HERE
    models: [gpt-5.5]
    lanes:
      priority: {service_tier: priority, ms_per_output_token: 8}
      standard: {service_tier: default}
      flex: {service_tier: flex}
policies: teams
"""
TEAM = """
team: a
rules:
  - {name: night, when: "hour < 6", class: batch}
  - {name: editor, when: {client: "editor/*"}, class: interactive}
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Runs the command in a folder with a request and a policy folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "teams").mkdir()
    (tmp_path / "teams" / "a.yaml").write_text(TEAM)
    (tmp_path / "r.json").write_text(json.dumps({"model": "gpt-5.5", "messages": [], "max_tokens": 200}))
    return lambda *args: CliRunner().invoke(main, ["policy", "explain", "--team", "a", *args, "r.json"])


def test_the_lanes_are_those_of_the_settings(told, tmp_path):
    """With their prices and first guesses, and without the keys that only a running gateway needs."""
    (tmp_path / "tollway.yaml").write_text(CONFIG)
    found = json.loads(told("--hour", "12", "--header", "user-agent:editor/3", "--json").stdout)
    by_lane = {row["lane"]: row for row in found["lanes"]}
    assert found["class"] == "interactive"
    assert by_lane["openai/priority"]["place"] == 1
    assert by_lane["openai/priority"]["cost_usd"] == pytest.approx(2.5 * by_lane["openai/standard"]["cost_usd"])
    assert by_lane["openai/standard"]["wait_s"] > by_lane["openai/priority"]["wait_s"]
    assert by_lane["openai/flex"]["says"] == "lane flex is not among those of class interactive"
    night = json.loads(told("--hour", "3", "--json").stdout)
    assert (night["class"], night["lanes"][0]["lane"]) == ("batch", "openai/flex")


def test_without_settings_the_lanes_are_examples_and_it_says_so(told):
    """The policy is the folder's all the same."""
    answer = told("--policies", "teams", "--hour", "12")
    assert "embedded/standard" in answer.output
    assert "--config tollway.yaml has yours" in answer.output


@pytest.mark.parametrize(("args", "says"), [
    (("--config", "none.yaml"), "there is no such file"),
    (("--path", "/v1/chats"), "known are /v1/chat/completions"),
    (("--header", "x-app"), "is not NAME:VALUE"),
    (("--hour", "24"), "24 is not in the range"),
])
def test_what_cannot_be_explained_is_told(told, tmp_path, args, says):
    """With the way out."""
    (tmp_path / "tollway.yaml").write_text(CONFIG)
    answer = told(*args)
    assert answer.exit_code != 0
    assert says in answer.output


@pytest.mark.parametrize("body", [b"\xff\xfe", b"", b"[1,2", b"{}", b'{"model": 5}', b'{"model": "m", "max_tokens": "x"}', b"[" * 200_000], ids=range(7))
def test_a_request_that_is_none_is_told(told, tmp_path, body):
    """In one line, whatever the file holds."""
    (tmp_path / "r.json").write_bytes(body)
    answer = told()
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: r.json: is no request body with a model: ")


def test_a_team_without_a_file_is_told(told):
    """The default policy decides then, and it says so."""
    answer = told("--policies", "teams", "--team", "b")
    assert answer.exit_code == 0
    assert "There is no policy file of team b: the default policy decides." in answer.output
    assert "no policy file" not in told("--policies", "teams").output


def test_a_folder_without_policies_is_not_all_good(told, tmp_path):
    """A folder's name that is misspelt must not pass for checked."""
    (tmp_path / "none").mkdir()
    answer = CliRunner().invoke(main, ["policy", "check", "none"])
    assert (answer.exit_code, "holds no policy file" in answer.output) == (1, True)
