import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from router_policies.problems import BadFile
from router_policies.yaml_events import dotted, read


@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), ("-3", -3), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("true", True), ("False", False), ("null", None), ("~", None),
    ("off", "off"), ("no", "no"), ("on", "on"), ("010", "010"), ("0x1F", "0x1F"), ("1_000", "1_000"), ("12:30", "12:30"), ("2026-01-01", "2026-01-01"),
    ("'1'", "1"), ("'true'", "true"), ("1.2.3", "1.2.3"), (".", "."), ("e5", "e5"), ("9" * 40, "9" * 40), ("''", ""),
])
def test_plain_words_mean_what_they_look_like(text, value):
    """No octal, no yes for true, no dates, no clock times: those are text."""
    found = read(f"x: {text}\n", "f").data["x"]
    assert (found, type(found)) == (value, type(value))


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-10**9, 10**9) | st.text("abc :-#'\"\\nyo01.~", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=4), inner, max_size=3), max_leaves=12,
))
@settings(max_examples=150, deadline=None)
def test_it_reads_what_ruamel_writes(value):
    """Any plain value comes back the same."""
    import io

    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.representer.ignore_aliases = lambda *_: True
    yaml.dump({"x": value}, out)
    try:
        assume(yaml.load(out.getvalue()) == {"x": value})  # ruamel writes some texts, ": 0" for one, so that it cannot read them
    except YAMLError:
        assume(False)
    document = read(out.getvalue(), "f")
    assert (document.data, document.problems) == ({"x": value}, ())


def test_places_are_those_of_an_editor():
    """Lines and columns count from 1; keys and values have places of their own."""
    document = read("a:\n  - b: 1\n    c: [x, y]\n", "f")
    assert (document.values["a", 0, "c", 1].line, document.values["a", 0, "c", 1].column) == (3, 12)
    assert (document.keys["a", 0, "c"].line, document.keys["a", 0, "c"].column) == (3, 5)
    assert dotted(("a", 0, "c")) == "a[0].c"


@pytest.mark.parametrize(("text", "line", "says"), [
    ("a: 1\nb: " + "!" * 900_000, 2, "a line of more than 10000"), ("a: [" + "x,\n" * 30_000 + "]", 20_000, "more than 20000 values"),
])
def test_a_file_that_would_take_long_is_refused_early(text, line, says):
    """The gateway reads policy files while it serves calls."""
    with pytest.raises(BadFile, match=says) as bad:
        read(text, "f")
    assert abs(bad.value.problems[0].line - line) < 5


def test_reading_goes_on_after_a_lesser_problem():
    """All that can be told is told at once."""
    document = read("a: &x 1\nb: *x\nc: !t 2\nd: 1\nd: 2\ne: .inf\n", "f")
    assert [p.line for p in document.problems] == [1, 2, 3, 5, 6]


def test_a_syntax_error_quotes_nothing():
    """The parser's own message would have a piece of the file in it, and with it a secret."""
    with pytest.raises(BadFile) as bad:
        read("key: sk-secret: sk-secret\n", "f")
    assert "sk-secret" not in str(bad.value)
