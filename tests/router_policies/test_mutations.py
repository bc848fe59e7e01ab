"""A thousand slips in good files: none gets through, and each is told at its place."""

import random
from pathlib import Path

import pytest

from router_policies.build import build
from router_policies.problems import BadFile
from router_policies.schema import TeamFile
from router_policies.strict_yaml import validate
from router_policies.yaml_events import read
from tests.router_policies.test_docs import WHOLE

TEAMS = Path(__file__).parents[2] / "router_policies" / "teams"
FILES = [WHOLE, *(path.read_text(encoding="utf-8") for path in sorted(TEAMS.glob("*.yaml")))]
FREE = {("models", "aliases"), ("models", "fallbacks"), ("classes",), ("normalize", "passes"), ("projects",)}
"""Mappings whose keys are the author's own names."""
FREE_LAST = {"header", "headers", "tag", "tags"}


def policy(text):
    document = read(text, "f.yaml")
    return build(document, validate(document, TeamFile))


def places(text):
    """Keys of the schema, and scalar values, with line and column (from 0)."""
    document = read(text, "f.yaml")
    keys = [(path, mark) for path, mark in document.keys.items() if path[:-1] not in FREE and (len(path) < 2 or path[-2] not in FREE_LAST)]

    def at(path):
        value = document.data
        for part in path:
            value = value[part]
        return value

    values = [(path, mark) for path, mark in document.values.items() if path and not isinstance(at(path), dict | list | type(None))]
    return keys, values


def line_with(text, mark, change):
    lines = text.split("\n")
    lines[mark.line - 1] = change(lines[mark.line - 1], mark.column - 1)
    return "\n".join(lines)


def slip_in_a_key(rng, line, column):
    end = next((i for i in range(column, len(line)) if line[i] == ":"), len(line))
    key, at = line[column:end], rng.randrange(end - column)
    slipped = rng.choice([key[:at] + key[at] + key[at:], key[:at] + "x" + key[at:], key + "s_", key.upper()])
    return line[:column] + slipped + line[end:]


def mapping_for_a_scalar(rng, line, column):
    return line[:column] + "{zz: 1} #" + line[column:]


def anchor_before_a_value(rng, line, column):
    return line[:column] + rng.choice(["&a ", "!!str ", "!x "]) + line[column:]


def alias_for_a_value(rng, line, column):
    return line[:column] + "*a #" + line[column:]


SLIPS = [(0, slip_in_a_key), (1, mapping_for_a_scalar), (1, anchor_before_a_value), (1, alias_for_a_value)]


@pytest.mark.parametrize("part", range(4))
def test_no_slip_gets_through_and_each_is_told_at_its_place(part):
    """100 in the longest file, 300 in each other: a key misspelt, a value of the wrong shape, YAML's cleverness; flow and block style, at every depth."""
    rng, text = random.Random(part), FILES[part]
    policy(text)
    keys_and_values = places(text)
    for _ in range(300 if part else 100):
        which, slip = rng.choice(SLIPS)
        path, mark = rng.choice(keys_and_values[which])
        line = text.split("\n")[mark.line - 1]
        if which == 1 and {"{", "["} & set(line[: mark.column]) and slip is not anchor_before_a_value:
            slip = anchor_before_a_value  # a comment would swallow the rest of a flow mapping
        mutant = line_with(text, mark, lambda line, column, slip=slip: slip(rng, line, column))
        with pytest.raises(BadFile) as bad:
            policy(mutant)
        told = [problem.line for problem in bad.value.problems]
        assert mark.line in told, (slip.__name__, path, mutant.split("\n")[mark.line - 1], [str(one) for one in bad.value.problems])


@pytest.mark.parametrize(("edit", "line", "says"), [
    (("epsilon: 0.05", "epsilon: 7"), "epsilon: 7", "at most 1"),
    (("class: interactive\n", "class: interactve\n"), "class: interactve", "did you mean `interactive`"),
    (("timezone: Europe/Berlin", "timezone: Europe/Berlim"), "Berlim", "did you mean `Europe/Berlin`"),
    (("window: month", "window: monthly"), "window: monthly", "did you mean `month`"),
    (("limit_usd: \"1500.00\"", "limit_usd: -1"), "limit_usd: -1", "at least 0"),
    (("gpt-5.5: [gpt-5.4]", "gpt-5.5: [gpt-5.5]"), "gpt-5.5: [gpt-5.5]", "cycle"),
    (("!stream && !", "!straem && !"), "straem", "did you mean `stream`"),
    (("nightly-evals: {default_class: batch}", "nightly-evals: {default_class: bach}"), "bach", "did you mean `batch`"),
    (("closed: false", "closed: true"), "models:", "named, without patterns"),
    (("hold_out: 0.02", "hold_out: 2%"), "hold_out: 2%", "must be a number"),
])  # fmt: skip
def test_a_slip_of_meaning_is_told_with_the_nearest_word(edit, line, says):
    """What YAML and shape let through, the names do not."""
    assert edit[0] in WHOLE
    mutant = WHOLE.replace(*edit, 1)
    with pytest.raises(BadFile) as bad:
        policy(mutant)
    told = [problem for problem in bad.value.problems if says in str(problem)]
    assert told, [str(one) for one in bad.value.problems]
    number = next(n for n, text in enumerate(mutant.split("\n"), 1) if line in text)
    assert told[0].line >= number
    assert told[0].line - number <= 2


def test_a_file_that_is_cut_anywhere_is_whole_or_refused():
    """Never a third thing: what is applied is a prefix that is right by itself."""
    rng = random.Random(9)
    for _ in range(60):
        cut = WHOLE[: rng.randrange(len(WHOLE))]
        try:
            made = policy(cut)
        except BadFile:
            continue
        assert "search".startswith(made.team)
