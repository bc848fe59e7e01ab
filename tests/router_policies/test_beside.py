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
