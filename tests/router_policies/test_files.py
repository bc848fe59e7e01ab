"""Folders, inheritance, and the store; and mutations of good files, none of which may be taken up unseen."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from router_policies.files import BadFile, PolicyStore, load_file, load_folder
from router_policies.strict_yaml import Problem

SHIPPED = Path(__file__).parents[2] / "router_policies" / "teams"
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # each example loads files: shrinking would take minutes
TEXTS = {path.name: path.read_text() for path in sorted(SHIPPED.glob("*.yaml"))}


def test_a_folder_is_a_set_of_teams(write):
    """A team without a file gets the preset, or the file whose team is `default`."""
    teams = load_folder(write(a_yaml="team: a\n", b_yaml="team: b\ndefault_class: batch\n"))
    assert set(teams.policies) == {"a", "b"}
    assert (teams.for_team("b").default_class, teams.for_team("nobody").default_class) == ("batch", "standard")
    teams = load_folder(write(c_yaml="team: default\ndefault_class: agent\n"))
    assert teams.for_team("nobody").default_class == "agent"


def test_two_files_of_one_team_are_a_problem_of_both(write):
    """Else the alphabet would decide which budget holds."""
    with pytest.raises(BadFile, match=r"b\.yaml:1:7: team: team `a` has a file already: .*a\.yaml"):
        load_folder(write(a_yaml="team: a\n", b_yaml="team: a\n"))


def test_problems_of_all_files_are_told(write):
    """One look at the list is enough."""
    with pytest.raises(BadFile) as bad:
        load_folder(write(a_yaml="team: A\n", b_yaml="tem: b\n", c_yaml="team: c\n"))
    assert {Path(p.file).name for p in bad.value.problems} == {"a.yaml", "b.yaml"}


BASE = "classes: {own: {value_usd_per_hour: 1, epsilon: 0.2}}\nbudgets: [{name: b, limit_usd: 1}]\nnormalize: {level: off}\n"


def test_a_child_wins_over_what_it_extends(write):
    """Mappings are merged, lists and single values are replaced; team, description and tests are not handed down."""
    folder = write(
        _base_yaml=BASE, mid_yaml="extends: _base.yaml\nteam: mid\ndescription: d\nhang_up: drain\ntests: [{name: x, given: {model: m}, expect: {allowed: true}}]\n",
        leaf_yaml="extends: mid.yaml\nteam: leaf\nclasses: {own: {epsilon: 0.1}}\nbudgets: []\n",
    )
    leaf = load_folder(folder).policies["leaf"]
    assert (leaf.classes["own"].value_usd_per_hour, leaf.classes["own"].epsilon) == (1, 0.1)
    assert (leaf.budgets, leaf.normalize.level, leaf.hang_up, leaf.description, leaf.tests) == ((), "off", "drain", "", ())
    assert load_file(folder / "leaf.yaml").version == leaf.version
    assert set(load_folder(folder).policies) == {"mid", "leaf"}


@pytest.mark.parametrize(("files", "says"), [
    ({"a_yaml": "team: a\nextends: a.yaml\n"}, r"a\.yaml:2:10: extends: makes a cycle"),
    ({"a_yaml": "team: a\nextends: b.yaml\n", "b_yaml": "team: b\nextends: a.yaml\n"}, r"makes a cycle: a\.yaml -> b\.yaml -> a\.yaml"),
    ({"a_yaml": "team: a\nextends: bse.yaml\n", "base_yaml": "team: b\n"}, r"did you mean `base\.yaml`\?"),
    ({"a_yaml": "team: a\nextends: ../../etc/passwd\n"}, "no such file in this folder"),
    ({"a_yaml": "team: a\nextends: _b.yaml\n", "_b_yaml": "hang_up: x\n"}, r"_b\.yaml:1:10: hang_up"),
    ({"a_yaml": "team: a\nextends: 5\n"}, "must be text"),
])
def test_bad_inheritance_names_the_place(write, files, says):
    """In the parent's file, where the mistake is the parent's."""
    with pytest.raises(BadFile, match=says):
        load_folder(write(**files))


def _rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, ns=(1, random.getrandbits(40)))


def test_a_good_change_is_taken_up_whole(write):
    """At the second look that sees the same files, so that a half-written one is never read."""
    folder = write(a_yaml="team: a\n")
    store = PolicyStore(folder)
    assert store.reload_if_changed() is None
    before = store.current
    _rewrite(folder / "a.yaml", "team: a\ndefault_class: batch\n")
    assert store.reload_if_changed() is None
    assert store.current is before
    assert store.reload_if_changed() == []
    assert store.current.for_team("a").default_class == "batch"
    assert store.current.version != before.version


def test_a_bad_change_changes_nothing_and_is_remembered(write):
    """Also for the teams whose files are good: the set is swapped whole or not at all."""
    folder = write(a_yaml="team: a\n", b_yaml="team: b\n")
    store = PolicyStore(folder, clock=lambda: 1234.0)
    before = store.current
    _rewrite(folder / "a.yaml", "team: a\ndefault_class: batch\n")
    _rewrite(folder / "b.yaml", "team: b\nbudgt: []\n")
    problems = store.reload()
    assert [(p.line, p.hint) for p in problems] == [(2, "did you mean `budgets`?")]
    assert (store.current, store.problems, store.failed_at) == (before, tuple(problems), 1234.0)
    assert store.reload_if_changed() is None, "a bad file is read once, not twice a second"
    _rewrite(folder / "b.yaml", "team: b\n")
    assert store.reload() == []
    assert (store.problems, store.failed_at, store.current.for_team("a").default_class) == ((), None, "batch")


def test_a_folder_that_went_away_changes_nothing(write, tmp_path):
    """A volume that is not mounted must not take all budgets away."""
    folder = write(a_yaml="team: a\n")
    store = PolicyStore(folder)
    (folder / "a.yaml").unlink()
    assert "all policy files are gone" in str(store.reload()[0])
    folder.rename(tmp_path.parent / f"{tmp_path.name}-away")
    assert "cannot be read" in str(store.reload()[0])
    assert store.reload_if_changed() is None
    assert set(store.current.policies) == {"a"}


def test_a_gateway_does_not_start_on_a_bad_policy(write):
    """And without a folder it starts on the preset."""
    with pytest.raises(BadFile, match="did you mean `team`"):
        PolicyStore(write(a_yaml="taem: a\n"))
    assert PolicyStore(None).reload() == []
    assert PolicyStore(None).current.for_team("x").default_class == "standard"


OWN_NAMES = ("default", "small", "background")  # aliases and a class that the files' authors made up: no word is wrong there


def _store_of(folder: Path, name: str) -> PolicyStore:
    for old in folder.glob("*.yaml"):
        old.unlink()
    (folder / name).write_text(TEXTS[name])
    return PolicyStore(folder)


def _typo_in_key(lines: list[str], i: int, draw: random.Random) -> list[int] | None:
    body = lines[i].lstrip(" -")
    key, colon, _ = body.partition(":")
    if not colon or not key.isidentifier() or len(key) < 4 or key in OWN_NAMES:
        return None
    at = lines[i].index(key) + draw.randrange(len(key) - 1)
    lines[i] = lines[i][:at] + lines[i][at + 1 :]
    return [i]


def _wrong_type(lines: list[str], i: int, draw: random.Random) -> list[int] | None:
    key, colon, value = lines[i].partition(": ")
    if not colon or not value.strip() or value.strip()[0] in "|>#" or "#" in lines[i]:
        return None
    lines[i] = f"{key}: {draw.choice(['[[1]]', '{a: {b: 1}}', '.nan'])}"
    return [i]


def _doubled(lines: list[str], i: int, draw: random.Random) -> list[int] | None:
    key, colon, value = lines[i].partition(": ")
    if not colon or not value.strip() or key.lstrip().startswith(("-", "#")):
        return None
    lines.insert(i + 1, lines[i])
    return [i + 1]


def _bad_word(lines: list[str], i: int, draw: random.Random) -> list[int] | None:
    for word in ("lossless", "cancel", "drain", "month", "day", "class: true", "deadline: true", "reject"):
        if word in lines[i] and "#" not in lines[i].split(word)[0] and "name" not in lines[i] and "description" not in lines[i]:
            lines[i] = lines[i].replace(word, word[:-1] + draw.choice("qxz"), 1)
            return [i]
    return None


def _bracket(lines: list[str], i: int, draw: random.Random) -> list[int] | None:
    if "#" in lines[i] or lines[i].rstrip()[-1:] not in ("]", "}") or "'" in lines[i]:
        return None
    lines[i] = lines[i].rstrip()[:-1]
    return list(range(i, len(lines) + 1))  # noticed where it opens, or where the text stops making sense


MUTATIONS = [_typo_in_key, _wrong_type, _doubled, _bad_word, _bracket]


@given(name=st.sampled_from(sorted(TEXTS)), mutate=st.sampled_from(MUTATIONS), seed=st.integers(0, 2**32), where=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mutated_file_is_refused_and_named(tmp_path, name, mutate, seed, where):
    """A slip in a good file: the store stays as it was, and a problem names the line."""
    lines = TEXTS[name].splitlines()
    expected = next((hit for i in range(len(lines)) if (hit := mutate(lines, (i + where) % len(lines), random.Random(seed))) is not None), None)
    assert expected is not None
    store = _store_of(tmp_path, name)
    before = store.current
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    problems = store.reload()
    assert store.current is before
    assert {p.line - 1 for p in problems} & set(expected), f"{mutate.__name__} at line {expected[0] + 1}: {problems}"


@given(name=st.sampled_from(sorted(TEXTS)), share=st.floats(0.0, 0.999))
@settings(max_examples=60, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_is_refused_or_valid_by_itself(tmp_path, name, share):
    """No stack trace at any cut; and the store never sees one while it is written (see the two looks above)."""
    store = _store_of(tmp_path, name)
    before = store.current
    (tmp_path / name).write_text(TEXTS[name][: int(len(TEXTS[name]) * share)])
    problems = store.reload()
    assert all(isinstance(p, Problem) and p.line >= 1 for p in problems)
    assert (store.current is before) == bool(problems)
