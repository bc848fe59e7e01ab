import random

import pytest
from msgspec.structs import replace

from gateway.lanes.trial import Side, Trials, missed, shadow_row, verdict
from router_policies.files import BadFile, load_folder
from router_policies.policy import decide
from router_policies.presets import default_policy, example_lanes
from router_policies.rules import Canary, Klass
from router_policies.types import Ask


@pytest.fixture
def policies(tmp_path):
    def made(mode, more=""):
        (tmp_path / "a.yaml").write_text("team: a\n")
        (tmp_path / "a-next.yaml").write_text(f"team: a\nmode: {mode}\ndefault_class: interactive\n{more}")
        return load_folder(tmp_path)

    return made


def test_a_canary_decides_its_share_and_the_same_runs(policies):
    """The live file the rest; a shadow decides nothing."""
    trials, canary = Trials(), policies("canary", "canary: {share: 0.25}\n")
    picked = [trials.policy(canary, "a", f"run-{n}").mode for n in range(2_000)]
    assert picked.count("canary") == pytest.approx(500, rel=0.15)
    assert picked == [trials.policy(canary, "a", f"run-{n}").mode for n in range(2_000)]
    assert trials.policy(canary, "other", "run-1").mode == "live"
    shadow = policies("shadow")
    assert {trials.policy(shadow, "a", f"run-{n}").mode for n in range(99)} == {"live"}
    assert trials.shadow(shadow, "a").mode == "shadow"
    assert trials.shadow(canary, "a") is None


@pytest.mark.parametrize(("canary_usd", "canary_misses", "says"), [
    (1.0, 0.01, None), (1.05, 0.01, None), (1.5, 0.01, "a call costs 1.5"), (0.5, 0.01, None), (1.0, 0.2, "of calls fail or miss"),
])
def test_what_costs_or_misses_more_is_rolled_back(canary_usd, canary_misses, says):
    """Beyond the limit and beyond chance."""
    rng, sides = random.Random(1), [Side(), Side()]
    for _ in range(400):
        sides[0].add(rng.uniform(0.5, 1.5), rng.random() < 0.01)
        sides[1].add(canary_usd * rng.uniform(0.5, 1.5), rng.random() < canary_misses)
    found = verdict(*sides, Canary())
    assert (found is None) if says is None else (says[:12] in found)


def test_a_few_dear_calls_prove_nothing():
    """Too few, or too wild."""
    few, wild = Side(), Side()
    few.add(9.0, True)
    live = Side()
    for n in range(200):
        live.add(1.0, False)
        wild.add(60.0 if n == 0 else 0.9, False)
    assert verdict(live, few, Canary()) is None
    assert verdict(live, wild, Canary()) is None


def test_a_roll_back_holds_until_the_file_changes(policies):
    """Then the trial begins anew."""
    trials, bad = Trials(), policies("canary", "canary: {share: 1, min_calls: 20}\n")
    versions = bad.for_team("a").version, bad.candidates["a"].version
    for _ in range(30):
        trials.saw(bad, "a", versions[0], 1_000_000, False)
        trials.saw(bad, "a", versions[1], 2_000_000, False)
    assert trials.policy(bad, "a", "r").mode == "live"
    assert "a call costs" in trials.rolled_back[versions[1]]
    fresh = policies("canary", "canary: {share: 1, min_calls: 21}\n")
    assert trials.policy(fresh, "a", "r").mode == "canary"


def test_a_candidate_needs_a_live_file(tmp_path):
    """And a team has one of each kind."""
    (tmp_path / "b.yaml").write_text("team: b\nmode: shadow\n")
    with pytest.raises(BadFile, match=r"b.yaml:2:7.*no live file"):
        load_folder(tmp_path)
    (tmp_path / "a.yaml").write_text("team: b\n")
    (tmp_path / "c.yaml").write_text("team: b\nmode: shadow\n")
    with pytest.raises(BadFile, match="has a file already beside its live one"):
        load_folder(tmp_path)


def test_what_a_shadow_would_have_done_is_a_row(policies):
    """With its version, beside the lanes' figures."""
    shadow = policies("shadow").candidates["a"]
    row = shadow_row(decide(shadow, Ask(team="a", model="m", prompt_tokens=100), example_lanes("m")))
    assert (row["lane"], row["class"], row["shadow"]) == ("embedded/fast", "interactive", shadow.version)
    assert "would take no lane" in shadow_row(decide(shadow, Ask(team="a", model="x"), ()))["refused"]


@pytest.mark.parametrize(("deadlines", "ok", "first", "total", "late"), [
    ({}, True, 9e9, 9e9, False), ({}, False, 1, 1, True), ({"first_token_deadline_ms": 5.0}, True, 6, 9, True),
    ({"first_token_deadline_ms": 5.0}, True, None, 9, False), ({"total_deadline_ms": 5.0}, True, 1, 6, True),
])
def test_a_call_that_fails_or_is_late_is_missed(deadlines, ok, first, total, late):
    """By the class that it was decided as."""
    policy = default_policy()
    klass = Klass(name="k", **deadlines)
    decision = decide(policy, Ask(team="a", model="m"), example_lanes("m"))
    total_ms = deadlines.get("total_deadline_ms")
    assert missed(replace(decision, klass=klass, deadline_ms=total_ms), ok, first, total) is late


def test_what_one_process_rolls_back_all_do(policies):
    """Each tells the others, and does not tell what it was told."""
    files = policies("canary", "canary: {share: 1, min_calls: 20}\n")
    one, other = Trials(), Trials()
    one.fresh, other.fresh = {}, {}
    for _ in range(30):
        one.saw(files, "a", files.for_team("a").version, 1_000_000, False)
        one.saw(files, "a", files.candidates["a"].version, 2_000_000, False)
    other.take(list(one.fresh.items()))
    assert other.policy(files, "a", "r").mode == "live"
    assert other.standing(files, "a")["rolled_back"] == one.standing(files, "a")["rolled_back"]
    assert other.fresh == {}
    assert one.standing(files, "nobody") is None


def test_a_memory_that_cannot_be_read_is_none(tmp_path):
    """The gateway starts all the same."""
    (tmp_path / "kept.json").write_text("{half")
    assert Trials(tmp_path / "kept.json").rolled_back == {}
    trials = Trials(tmp_path / "nowhere" / "kept.json")
    trials.take([("v", "why")])
    assert trials.rolled_back == {"v": "why"}
