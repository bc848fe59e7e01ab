from types import MappingProxyType

import pytest

from router_policies.conditions import BadCondition, expression, matchers
from router_policies.rules import RuleFailed
from router_policies.schema import When

FULL = {
    "headers": MappingProxyType({"x-app": "editor-1", "b": "z"}), "tags": MappingProxyType({"job": "nightly-1"}), "client": "claude-cli/2",
    "stream": True, "has_tools": True, "path": "/v1/messages", "model": "alias", "prompt_bytes": 900, "hour": 23,
}


@pytest.mark.parametrize(("when", "hit"), [
    ({"header": {"X-App": "editor*"}}, True), ({"header": {"x-app": "chat*"}}, False), ({"header": {"none": "*"}}, False),
    ({"tag": {"job": "nightly*"}}, True), ({"tag": {"Job": "*"}}, False), ({"client": "claude*"}, True), ({"client": "openai*"}, False),
    ({"stream": True}, True), ({"stream": False}, False), ({"tools": True}, True), ({"tools": False}, False),
    ({"path": "/v1/mess*"}, True), ({"path": "/v1/chat*"}, False), ({"model": "alias"}, True), ({"model": "real*"}, True), ({"model": "x"}, False),
    ({"stream": True, "client": "claude*"}, True), ({"stream": True, "client": "openai*"}, False),
])
def test_all_matchers_that_are_given_must_hold(ask, when, hit):
    """Header names have no case; the model matches as written or as meant."""
    assert matchers(When(**when), {"alias": "real-1"})(ask(**FULL)) is hit


def test_an_empty_when_is_refused():
    """It would be the default class under another name."""
    with pytest.raises(BadCondition, match="match every call"):
        matchers(When(), {})


@pytest.mark.parametrize(("text", "hit"), [
    ('hour >= 22 || hour < 6', True), ('headers["x-app"].startsWith("editor")', True), ('"x-app" in headers && stream', True),
    ('has(headers.b) && headers.b == "y"', False), ('tags.job == "nightly-1" && tools', True), ('size(headers) == 2', True),
    ('headers.exists(h, h == "b")', True), ('model.matches("^(a+)+$")', False), ('prompt_bytes > 1000', False), ('"headers" == client', False),
    ('path in ["/v1/messages"]', True), ('!("none" in tags)', True), ('client.contains("cli") ? stream : false', True),
])
def test_expressions_see_the_ask(ask, text, hit):
    """By the names in the docs, whether one header is named or all are looked at."""
    assert expression(text)(ask(**FULL)) is hit


@pytest.mark.parametrize("text", ['headers["none"] == "x"', 'tags.none == "x"'])
def test_what_cannot_be_worked_out_fails(ask, text):
    """The rule does not match, and the decision says which one failed."""
    with pytest.raises(RuleFailed):
        expression(text)(ask(**FULL))


@pytest.mark.parametrize(("text", "says", "hint"), [
    ("1 +", "not a CEL expression", ""), ("", "not a CEL expression", ""), ("(" * 240 + "true" + ")" * 240, "not a CEL expression", ""),
    ("hedaers.a == 'x'", "`hedaers`", "headers"), ("foo(model)", "cannot be worked out", ""), ("model", "true or false", ""),
    ("hour ? true : false", "different types|worked out|true or false", ""), ("model.matches('(')", "regex", ""), ("model.matches('(x{900}){900}')", "regex", ""),
    ("hour + 1.5 > 3.0", "different types", ""), ("stream || " * 60 + "stream", "longer than 500", "split"),
    ("tags.all(a, headers.all(b, tags.all(c, c == b)))", "more than 2", "split"), ("headers['X-App'] == 'a'", "upper case", ""),
    ("headers.map(a, headers.map(b, headers[a] + headers[b])).size() > 0", "100 headers", "simplify"),
])
def test_a_bad_expression_is_refused_at_load(text, says, hint):
    """Not when the first call comes."""
    with pytest.raises(BadCondition, match=says) as bad:
        expression(text)
    assert hint in bad.value.hint


def test_macros_inside_texts_do_not_count(ask):
    """A text that looks like code is a text."""
    assert expression("client != '.all(.map(.filter(' && model != \".map(\"")(ask())
