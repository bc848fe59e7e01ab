"""Markers are taken out as if they had never been set."""
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.marking import marked, unmarked

RULE = re.compile(rb'(,\s*)?"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:null|\{[^{}]*\})(\s*,\s*)?')
PIECES = st.sampled_from([
    b'"cache_control"', b'"prompt_cache_breakpoint"', b":", b" ", b",", b"\n", b"{", b"}", b"null", b'"a"', b'{"type":"ephemeral"}', b'"cache_control":null',
    b',"cache_control":{}', b'"prompt_cache_breakpoint" : {"a":1} , ',
])  # fmt: skip


@given(st.lists(PIECES, max_size=20).map(b"".join))
def test_one_comma_goes_with_each(value: bytes) -> None:
    """The rule in one line, which would be slow on long texts."""
    assert unmarked(value) == RULE.sub(lambda found: found[1] if found[1] and found[2] else b"", value)


@pytest.mark.parametrize(("value", "bare"), [
    (b'{"a":1,"cache_control":{"type":"ephemeral"}}', b'{"a":1}'),
    (b'{"cache_control":{"type":"ephemeral"}, "a":1}', b'{"a":1}'),
    (b'{"a":1, "cache_control":null, "b":2}', b'{"a":1, "b":2}'),
    (b'{"cache_control":{}}', b"{}"),
    (b'{"text":"a \\"cache_control\\":null"}', b'{"text":"a \\"cache_control\\":null"}'),
])  # fmt: skip
def test_markers(value: bytes, bare: bytes) -> None:
    assert unmarked(value) == bare
    assert marked(value) is (value != bare)
