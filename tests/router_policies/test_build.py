from decimal import Decimal

import pytest

from router_policies.files import BadFile, load_file, load_folder
from router_policies.rules import Start

GOOD = """\
team: t
models:
  allow: ["m-*"]
  aliases: {small: m-a}
  fallbacks: {m-a: [m-b]}
classes:
  interactive: {lanes: [fast]}
  own: {value_usd_per_hour: 3}
default_class: own
client_may: {class: [batch]}
rules:
  - {name: r, when: {stream: true}, class: batch, lanes: [flex], value_usd_per_hour: 1}
budgets:
  - {name: b, limit_usd: "5.10", window: day, timezone: Europe/Berlin, scope: key}
normalize: off
unpriced: ceiling
ceiling_usd_per_mtok: 90
cache:
  pre_warm_usd_per_day: 2
  pre_warm_at:
    - {time: 8:05, days: [mon, fri], timezone: Europe/Rome}
    - {time: 22:30}
"""


def test_a_file_becomes_a_frozen_policy(write):
    """Built-in classes stay, and what a file says of one goes over what is built in."""
    policy = load_file(write(a_yaml=GOOD) / "a.yaml")
    assert policy.classes["interactive"].value_usd_per_hour == 60
    assert [str(lane) for lane in policy.classes["interactive"].lanes] == ["fast"]
    assert {"agent", "standard", "batch", "own"} <= set(policy.classes)
    assert (policy.rules[0].klass.name, policy.rules[0].klass.value_usd_per_hour) == ("batch", 1)
    assert policy.classes["batch"].value_usd_per_hour == 0
    assert (policy.budgets[0].limit_usd, policy.budgets[0].limit_nano_usd) == (Decimal("5.10"), 5_100_000_000)
    assert (policy.normalize.level, policy.normalize.hold_out) == ("off", 0.02)
    assert policy.cache.pre_warm_at == (
        Start(hour=8, minute=5, days=frozenset({0, 4}), timezone="Europe/Rome"), Start(hour=22, minute=30),
    )


@pytest.mark.parametrize(("old", "new", "line", "says"), [
    ("default_class: own", "default_class: onw", 9, "did you mean `own`?"),
    ("class: batch, lanes", "class: bacth, lanes", 12, "did you mean `batch`?"),
    ("{class: [batch]}", "{class: [bathc]}", 10, "did you mean `batch`?"),
    ("lanes: [flex]", "lanes: [flxe]", 12, "did you mean `flex`?"),
    ("lanes: [fast]", "lanes: [fsat]", 7, "did you mean `fast`?"),
    ("  interactive: {lanes", "  interactve: {value_usd_per_hour: 1, lanes", 7, "did you mean `interactive`?"),
    ("own: {value_usd_per_hour: 3}", "own: {lanes: [fast]}", 8, "`value_usd_per_hour` is missing"),
    ("value_usd_per_hour: 3", "value_usd_per_hour: -60", 8, "must be at least 0"),
    ("{small: m-a}", "{small: x}", 4, "leads nowhere"),
    ("{small: m-a}", "{small: big, big: m-a}", 4, "another alias"),
    ("{m-a: [m-b]}", "{m-a: [m-b], m-b: [m-a]}", 5, "cycle"),
    ("{m-a: [m-b]}", "{m-a: [m-a]}", 5, "cycle"),
    ("{m-a: [m-b]}", "{m-a: [x]}", 5, "cannot be used"),
    ("{m-a: [m-b]}", "{m-b: [small]}", 5, "is an alias"),
    ('["m-*"]', '["(a+)+$"]', 3, "only * (any text)"),
    ('["m-*"]', "[]", 3, "at least 1"),
    ("Europe/Berlin", "Europe/Berln", 14, "did you mean `Europe/Berlin`?"),
    ("Europe/Berlin", "../../etc/passwd", 14, "must be an IANA time zone such as Europe/Berlin; is text"),
    ("Europe/Berlin", "Mars/Base", 14, "is `Mars/Base`"),
    ("Europe/Rome", "Europe/Rom", 21, "did you mean `Europe/Rome`?"),
    ("22:30", "24:00", 22, "must be a time of day from 00:00 to 23:59"),
    ("22:30", "10pm", 22, "must be a time of day"),
    ("{time: 22:30}", "{days: [sat]}", 22, "field `time` is missing"),
    ("  pre_warm_at:\n    - {time: 8:05, days: [mon, fri], timezone: Europe/Rome}\n    - {time: 22:30}\n", "", 19, "needs `pre_warm_at`"),
    ("[mon, fri]", "[monday]", 21, "did you mean `mon`?"),
    ("[mon, fri]", "[]", 21, "at least 1"),
    ("window: day", "window: fortnight", 14, "is `fortnight`"),
    ('"5.10"', ".inf", 14, "finite"),
    ('"5.10"', '"Infinity"', 14, "finite"),
    ('"5.10"', '"-1"', 14, "at least 0"),
    ('"5.10"', "10, limit_usd: 100000", 14, "twice"),
    ("window: day", "window: dya", 14, "did you mean `day`?"),
    ("budgets:", "budgt:", 13, "did you mean `budgets`?"),
    ("ceiling_usd_per_mtok: 90", "", 16, "needs `ceiling_usd_per_mtok`"),
    ("when: {stream: true}", "when: stream &&", 12, "not a CEL expression"),
    ("when: {stream: true}", "when: 'strem'", 12, "did you mean `stream`?"),
    ("when: {stream: true}", "when: {}", 12, "match every call"),
    ("when: {stream: true}", "when: {header: [a]}", 12, "must be a mapping"),
    ("when: {stream: true}", "when: 5", 12, "must be a mapping"),
    ("team: t", "team: 'T 1'", 1, "must look like"),
    ("normalize: off", "normalize: of", 15, "off"),
    ("normalize: off", "normalize: {level: losless}", 15, "did you mean `lossless`?"),
    ("normalize: off", "hang_up: drian", 15, "did you mean `drain`?"),
])
def test_a_slip_is_named_where_it_stands(write, old, new, line, says):
    """Line, and what was probably meant."""
    assert old in GOOD
    with pytest.raises(BadFile) as bad:
        load_file(write(a_yaml=GOOD.replace(old, new, 1)) / "a.yaml")
    assert any(p.line == line and says in str(p) for p in bad.value.problems), str(bad.value)


def test_two_of_one_name_are_refused(write):
    """Names stand in reasons and errors, so each means one thing."""
    twice = "  - {name: b, limit_usd: 1}\n"
    with pytest.raises(BadFile, match=r"a\.yaml:15:12: budgets\[1\]\.name: another of the budgets"):
        load_folder(write(a_yaml=GOOD.replace("normalize", twice + "normalize", 1)))


def test_the_version_is_of_the_meaning(write):
    """Comments and order change nothing; a rate does; tests count as content."""
    folder = write(
        a_yaml="team: t\nhang_up: cancel\nclasses: {own: {value_usd_per_hour: 1}}\n",
        b_yaml="# a comment\nclasses:\n  own: {value_usd_per_hour: 1.0}\nteam: t\n",
        c_yaml="team: t\nclasses: {own: {value_usd_per_hour: 2}}\n",
    )
    a, b, c = (load_file(folder / name).version for name in ("a.yaml", "b.yaml", "c.yaml"))
    assert a == b != c
    assert a.startswith("sha256:")
    assert len(a) == 71
