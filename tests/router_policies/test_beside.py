from pathlib import Path

import pytest

from router_policies.files import BadFile, load_folder


def problems(write, text):
    with pytest.raises(BadFile) as bad:
        load_folder(write(a_yaml=text))
    return [(p.line, p.path) for p in bad.value.problems]


def test_all_mistakes_of_a_file_are_told_at_once(write):
    """Fields that are not there, values of the wrong kind, and names that lead nowhere."""
    text = "team: a\nmodels:\n  alow: 1\nrules:\n  - {name: r, when: {stream: true}, class: interactiv}\nexplore: high\n"
    assert problems(write, text) == [(3, "models.alow"), (5, "rules[0].class"), (6, "explore")]


def test_no_mistake_is_told_that_only_follows_from_another(write):
    """Classes under a misspelt heading are missing everywhere; an entry that cannot be read may have been the one that is meant."""
    assert problems(write, "team: a\nclases: {mine: {}}\nrules:\n  - {name: r, when: {stream: true}, class: mine}\n") == [(2, "clases")]
    assert problems(write, "team: a\nclasses: {mine: 3}\ndefault_class: mine\n") == [(2, "classes.mine")]
    assert problems(write, "team: a\nmodels: {allow: [1], aliases: {x: y}}\n") == [(2, "models.allow[0]")]


@pytest.mark.parametrize(("text", "says"), [
    ("team: t\nbudgets:\n  - {name: b, limit_usd: -3, window: month}\n", "f.yaml:3:26: budgets[0].limit_usd: must be at least 0"),
    ("team: 5\n", "f.yaml:1:7: team: must be text, is a number"),
    ("team: t\nnormalize: {hold_out: -1}\n", "f.yaml:2:23: normalize.hold_out: must be at least 0.0"),
    (
        "team: t\nclasses:\n  interactive: {first_token_deadline: 3000}\n",
        "f.yaml:3:17: classes.interactive.first_token_deadline: unknown field `first_token_deadline` (did you mean `first_token_deadline_ms`?)",
    ),
])  # fmt: skip
def test_one_mistake_is_one_message(text: str, says: str, tmp_path: Path) -> None:
    """What is there and wrong is not missing too, and a field of two shapes is complained of in the one that was meant."""
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(BadFile) as bad:
        load_folder(tmp_path)
    assert [str(p).replace(f"{tmp_path}/", "") for p in bad.value.problems] == [says]
