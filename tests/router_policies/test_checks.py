from pathlib import Path

from router_policies.checks import check_folder, explain, run_folder_tests, run_tests
from router_policies.files import load_file, load_folder
from router_policies.presets import default_policy

SHIPPED = Path(__file__).parents[2] / "router_policies" / "teams"


def test_the_shipped_files_are_good_examples():
    """They are valid, each has tests, and all of them pass."""
    assert check_folder(SHIPPED) == []
    results = run_folder_tests(SHIPPED)
    assert [f"{r.file}:{r.line}: {r.name}: {r.wrong}" for r in results if not r.passed] == []
    assert {r.team for r in results} == set(load_folder(SHIPPED).policies) == {"assistant", "nightly", "demo"}


def test_a_failed_test_says_what_came_out(write):
    """Expected and found, with the line of the test and the reason of the decision."""
    folder = write(a_yaml="team: a\nmodels: {allow: [m]}\ntests:\n  - name: n\n    given: {model: x}\n    expect: {class: batch, lane: fast, allowed: true, model: x}\n")
    (result,) = run_tests(load_file(folder / "a.yaml"))
    assert result.line == 4
    assert result.wrong == ("class: expected batch, is standard", "lane: expected fast, is none", "allowed: expected true, is false")
    assert result.reason == "model x is not among the allowed models"


def test_tests_see_the_headers_a_client_would_send(write):
    """Class, tags and user agent are read off the headers as the gateway does."""
    folder = write(a_yaml="team: a\nrules: [{name: r, when: {tag: {k: v}, client: 'curl*'}, class: agent}]\ntests:\n"
                   "  - {name: n, given: {model: m, headers: {X-Tollway-Tags: 'k=v, z=1', User-Agent: curl/8}}, expect: {class: agent}}\n")
    assert all(result.passed for result in run_tests(load_file(folder / "a.yaml")))


def test_an_explanation_has_a_row_for_every_lane(ask, lane):
    """First the ranking, then those that were refused and why."""
    decision, rows = explain(default_policy(), ask(), [lane("standard"), lane("fast", queue_s=9.0), lane("odd")])
    assert [(row.place, row.lane) for row in rows] == [(1, "b/standard"), (2, "b/fast"), (None, "b/odd")]
    assert rows[0].says == "chosen"
    assert rows[1].says.endswith("USD against the first")
    assert "not among those of class standard" in rows[2].says
    assert decision.ranked[0].lane.name == "standard"


def test_a_folder_with_problems_lists_them(write):
    """The command line prints these and ends with 1."""
    assert [p.line for p in check_folder(write(a_yaml="team: a\nruls: []\n"))] == [2]
