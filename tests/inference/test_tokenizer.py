"""Words to ids and back, chats that only grow at their end, and text that streams out whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.chat import encode_prompt
from inference.files import BadValue
from inference.tokenizer import StreamDecoder, Tokenizer, Turn
from tests.inference.tiny import TEMPLATE, tokenizer, tokenizer_meta

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn", "Co"]), max_size=40)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world",
        "  two  spaces 123 4 56\n\n\tx",
        "naïve 日本語 😀",
        "def f(a: int) -> str:\n    return 'x'",
        " 7",
        "\n \n",
    ],
)
def test_text_comes_back(words: Tokenizer, text: str) -> None:
    """Encoding loses nothing."""
    assert words.decode(words.encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_any_text_comes_back(text: str) -> None:
    """Also for text nobody writes."""
    assert tokenizer().decode(tokenizer().encode(text)) == text


@pytest.mark.parametrize("text", ["\x04", "a\x1db", "\U00050000", "\ud800"])
def test_what_cannot_be_written_is_replaced(words: Tokenizer, text: str) -> None:
    """Bytes that the vocabulary lacks become the replacement character instead of a crash or a control token."""
    assert "\ufffd" in words.decode(words.encode(text))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "system", "\n", "x", "<|endoftext|>"]), max_size=8))
def test_typed_control_tokens_stay_text(pieces: list[str]) -> None:
    """A user cannot close its own message."""
    words = tokenizer()
    ids = words.encode_chat([Turn("system", ("s",)), Turn("user", ("".join(pieces),))])
    assert ids.count(words.special["<|im_start|>"]) == 3
    assert ids.count(words.special["<|im_end|>"]) == 2


def test_the_chat_is_the_templates(words: Tokenizer) -> None:
    """The function says what the file's template would, default system message included."""
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    )
    assert words.encode_chat([Turn("user", ("Hi there",))]) == words.encoding.encode(text, allowed_special="all")


def test_an_unknown_template_is_named() -> None:
    """A file with another chat template is refused by the template's hash."""
    with pytest.raises(BadValue, match=r"sha256 [0-9a-f]{64}"):
        Tokenizer(tokenizer_meta() | {"tokenizer.chat_template": TEMPLATE + " "})


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*"abcS\n", "é", "😀", "Sto", "op", "STOP"]), max_size=20),
    st.lists(st.sampled_from(["Stop", "STOP", "ab", "é", "b\n", "abc"]), max_size=3),
)
def test_streamed_text_is_the_text_up_to_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    """Byte by byte, half characters and stop strings across deltas included, nothing behind a stop leaks."""
    words, text = tokenizer(), "".join(pieces)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    want = text[: min(ends)[0] - len(min(ends)[2])] if ends else text
    decoder = StreamDecoder(words, stops)
    got = ""
    for token in words.encode(text):
        got += decoder.push(token)
        assert want.startswith(got)
    assert got + decoder.finish() == want
    assert decoder.stopped == bool(ends)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=30))
def test_any_ids_stream_as_they_decode(ids: list[int]) -> None:
    """Bytes that are no UTF-8 give the same replacement characters streamed and whole."""
    decoder = StreamDecoder(tokenizer())
    assert "".join(decoder.push(token) for token in ids) + decoder.finish() == tokenizer().decode(ids)


def test_real_conversations_only_grow_at_their_end(words: Tokenizer, sessions: list[dict[str, Any]]) -> None:
    """The prompt of turn n + 1 begins with the prompt of turn n up to the answer's header, with 31 tools and calls."""
    for session in sessions:
        before: list[int] = []
        for turn in session["turns"]:
            ids = encode_prompt({"messages": session["messages"][:turn], "tools": session["tools"]}, words)
            assert ids[: len(before)] == before, session["id"]
            before = ids


def test_31_tools_leave_room(words: Tokenizer, sessions: list[dict[str, Any]]) -> None:
    """The recorded tools, 3,500 tokens as JSON, cost less than a tenth of the context; most recorded turns fit."""
    session = sessions[0]
    with_tools, without = (
        len(encode_prompt({"messages": session["messages"][:2]} | extra, words))
        for extra in ({"tools": session["tools"]}, {})
    )
    assert with_tools - without < 8192 // 10
    sizes = [
        len(encode_prompt({"messages": session["messages"][:turn], "tools": session["tools"]}, words))
        for session in sessions
        for turn in session["turns"]
    ]
    assert sum(size < 8192 for size in sizes) > 0.6 * len(sizes)
