import math
import random

import pytest
from msgspec.structs import replace

from router_policies.presets import default_policy
from router_policies.sensitivity import classify
from router_policies.types import Ask
from router_policies.waiting import BadModel, Measured, Model, Seen, load, measured, train

DAY_S = 86_400.0


def people(rng, at_s, **given):
    return Seen(**{"team": "chat", "at_s": at_s, "stream": rng.random() < 0.95, "client": "mozilla", "prompt_tokens": 900, "waited": int(rng.random() < 0.95), **given})


def jobs(rng, at_s, **given):
    return Seen(**{"team": "jobs", "at_s": at_s, "stream": rng.random() < 0.05, "client": "openai/python", "prompt_tokens": 9_000, "waited": int(rng.random() < 0.05), **given})


def days(count, seed=1):
    rng = random.Random(seed)
    return [who(rng, day * DAY_S + rng.random() * DAY_S) for day in range(count) for _ in range(60) for who in (people, jobs)]


@pytest.fixture(scope="module")
def model():
    return train(days(6))


def test_it_tells_who_waits_on_days_it_has_not_seen(model):
    """People and jobs that differ as they do: nearly as well as the labels allow."""
    assert model.measured.calls == 240
    assert model.measured.precision > 0.88
    assert model.measured.recall > 0.88
    assert model.measured.useful
    assert model.known == 480


def test_noise_is_not_useful():
    """Where nothing tells, it does not beat guessing, and is not used."""
    rng = random.Random(3)
    calls = [Seen("t", n * 600.0, rng.random() < 0.5, "x", 100, waited=int(rng.random() < 0.4)) for n in range(2_000)]
    assert not train(calls).measured.useful


def test_a_rule_and_the_clients_word_come_before_it(model):
    """And where it is not sure it says nothing."""
    policy, learnt = default_policy("chat"), model.learnt()
    ask = Ask(team="chat", model="m", stream=True, client="mozilla/5.0", prompt_tokens=900)
    assert (classify(policy, ask, learnt).klass.name, classify(policy, ask, learnt).source) == ("interactive", "learnt")
    assert classify(policy, replace(ask, wished_class="batch"), learnt).klass.name == "batch"
    job = Ask(team="jobs", model="m", has_tools=True, client="openai/python", prompt_tokens=9_000)
    assert classify(policy, job, learnt).klass.name == "batch"
    unsure = Model((0.0,) * len(model.weights), 0.0, {})
    assert classify(policy, ask, unsure.learnt()).source == "default"


def test_it_is_kept_in_a_file(model, tmp_path):
    """And read as it was written."""
    model.save(tmp_path / "m.json")
    again = load(tmp_path / "m.json")
    one = people(random.Random(1), 5.0)
    assert again.chance(one) == model.chance(one)
    assert again.measured == model.measured


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weights": [1], "bias": 0, "teams": {}, "known": 1, "measured": null, "features": ["x"]}'])
def test_a_file_that_is_no_model_is_told(tmp_path, text):
    """With the way out."""
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(BadModel, match="tollway sensitivity train"):
        load(tmp_path / "m.json")


@pytest.mark.parametrize(("calls", "says"), [
    ([], "has 0 days"), (days(2), "has 2 days"), (days(3)[:30], "has 1 days"),
    ([call._replace(waited=1) for call in days(5)], "of both kinds"), ([call._replace(waited=None) for call in days(5)], "has 0 days"),
])
def test_too_little_to_learn_from_is_told(calls, says):
    """Not a model of nothing."""
    with pytest.raises(ValueError, match=says):
        train(calls)


def test_measures_are_those_of_the_book():
    """Precision and recall at a chance of one half."""
    model = Model((5.0, *[0.0] * 10), -2.5, {})
    calls = [Seen("t", 0.0, stream, "", 1, waited=waited) for stream, waited in [(True, 1), (True, 0), (False, 1), (False, 0)]]
    found = measured(model, calls)
    assert (found.precision, found.recall, found.waited_share) == (0.5, 0.5, 0.5)
    assert found.base_log_loss == pytest.approx(math.log(2))
    assert not Measured(1, 0.5, 0.5, 0.5, 0.1, 0.6).useful
