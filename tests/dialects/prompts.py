"""Prompts in the form in which a dialect can say them, for round trips."""
from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gateway.core.prompt import Document, Image, Message, Prompt, Text, Thinking, Tool, ToolChoice, ToolResult, ToolUse

WORDS = st.text("abc é漢\"\\\n{}", min_size=1, max_size=12).filter(str.strip)
NAMES = st.text("abc_", min_size=1, max_size=6)
URLS = st.sampled_from(["https://example.com/a.png", "data:image/png;base64,iVBORw0KGgo="])
PDF = "data:application/pdf;base64,JVBERi0xLjQ="
ARGUMENTS = st.sampled_from(["{}", '{"city":"Oslo"}', '{"b":1.0,"a":[1,{"x":null}]}', '{"n":123456789012345678901234567890}'])
SCHEMAS = st.sampled_from([{"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}, {"type": "object", "required": ["x"]}])
CACHES = st.none() | st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])


def texts(cache: st.SearchStrategy[Any]) -> st.SearchStrategy[Text]:
    return st.builds(Text, text=WORDS, cache=cache)


def common(**more: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "model": NAMES, "max_output_tokens": st.integers(1, 9999), "stream": st.booleans(), "temperature": st.none() | st.just(0.5),
        "top_p": st.none() | st.just(0.9), "stop": st.lists(WORDS, max_size=2).map(tuple), "user": st.none() | NAMES, **more,
    }


def _with_tools(prompt: Prompt) -> bool:
    return bool(prompt.tools) or (prompt.tool_choice is None and prompt.parallel_tool_calls is None)


CHOICES = st.none() | st.builds(ToolChoice, mode=st.sampled_from(["auto", "none", "required"])) | st.builds(ToolChoice, mode=st.just("named"), name=NAMES)


def openai_prompts() -> st.SearchStrategy[Prompt]:
    plain, image = texts(st.none()), st.builds(Image, url=URLS, detail=st.none() | st.just("low")) | st.builds(Document, url=st.just(PDF), name=NAMES)
    calls = st.builds(ToolUse, id=NAMES, name=NAMES, arguments=ARGUMENTS)
    result = st.builds(ToolResult, id=NAMES, parts=st.lists(plain, max_size=2).map(tuple))
    user = st.builds(Message, role=st.just("user"), parts=st.lists(plain | image, min_size=1, max_size=3).map(tuple), name=st.none() | NAMES)
    tool = st.builds(Message, role=st.just("user"), parts=st.tuples(result))
    system = st.builds(Message, role=st.just("system"), parts=st.lists(plain, min_size=1, max_size=2).map(tuple))
    assistant = st.builds(lambda words, uses: Message(role="assistant", parts=(*words, *uses)), st.lists(plain, max_size=2), st.lists(calls, max_size=2))
    tools = st.lists(st.builds(Tool, name=NAMES, description=st.none() | WORDS, parameters=st.none() | SCHEMAS, strict=st.none() | st.booleans()), max_size=2)
    schema = st.none() | st.builds(lambda s: {"name": "x", "schema": s, "strict": True}, SCHEMAS)
    return st.builds(
        Prompt, messages=st.lists(user | tool | system | assistant, max_size=5).map(tuple), tools=tools.map(tuple), tool_choice=CHOICES,
        parallel_tool_calls=st.none() | st.booleans(), response_schema=schema,
        extra=st.dictionaries(st.sampled_from(["seed", "n", "prompt_cache_key", "reasoning_effort"]), st.just(1)), **common(),
    ).filter(_with_tools)


def anthropic_prompts() -> st.SearchStrategy[Prompt]:
    words = texts(CACHES)
    image = st.builds(Image, url=URLS, cache=CACHES) | st.builds(Document, url=st.sampled_from([PDF, "https://example.com/a.pdf"]), name=st.none() | NAMES, cache=CACHES)
    calls = st.builds(ToolUse, id=NAMES, name=NAMES, arguments=ARGUMENTS, cache=CACHES)
    result = st.builds(ToolResult, id=NAMES, parts=st.lists(words | image, max_size=2).map(tuple), is_error=st.booleans(), cache=CACHES)
    thinking = st.sampled_from([{"type": "thinking", "thinking": "", "signature": "U2ln"}, {"type": "redacted_thinking", "data": "x"}]).map(lambda raw: Thinking(raw=raw))
    user = st.builds(lambda r, p: Message(role="user", parts=(*r, *p)), st.lists(result, max_size=2), st.lists(words | image, min_size=1, max_size=2))
    assistant = st.builds(lambda t, p, u: Message(role="assistant", parts=(*t, p, *u)), st.lists(thinking, max_size=2), words, st.lists(calls, max_size=2))
    turns = st.lists(st.tuples(user, assistant), max_size=2).map(lambda pairs: [m for pair in pairs for m in pair])
    head = st.lists(st.builds(Message, role=st.just("system"), parts=st.lists(words, min_size=1, max_size=2).map(tuple)), max_size=1)
    tools = st.lists(st.builds(Tool, name=NAMES, description=st.none() | WORDS, parameters=SCHEMAS, strict=st.none() | st.booleans(), cache=CACHES), max_size=2)
    schema = st.none() | st.builds(lambda s: {"name": "answer", "schema": s, "strict": True}, SCHEMAS)
    single = st.none() | st.just(False)
    return st.builds(
        Prompt, messages=st.builds(lambda a, b: (*a, *b), head, turns), tools=tools.map(tuple), tool_choice=CHOICES, parallel_tool_calls=single,
        response_schema=schema, extra=st.dictionaries(st.sampled_from(["top_k", "thinking"]), st.just(1)), **common(),
    ).filter(_with_tools).filter(lambda p: p.parallel_tool_calls is None or (p.tool_choice is not None and p.tool_choice.mode != "none"))


def responses_prompts() -> st.SearchStrategy[Prompt]:
    """Turns as the items of this API come together: no two of a speaker in a row."""
    plain, image = texts(st.none()), st.builds(Image, url=URLS, detail=st.sampled_from(["low", "auto"])) | st.builds(Document, url=st.just(PDF), name=NAMES)
    calls = st.builds(ToolUse, id=NAMES, name=NAMES, arguments=ARGUMENTS)
    result = st.builds(ToolResult, id=NAMES, parts=st.lists(plain, min_size=1, max_size=2).map(tuple))
    reasoning = st.just(Thinking(raw={"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}))
    user = st.builds(Message, role=st.just("user"), parts=st.lists(plain | image, min_size=1, max_size=3).map(tuple))
    results = st.builds(Message, role=st.just("user"), parts=st.lists(result, min_size=1, max_size=2).map(tuple))
    assistant = st.builds(lambda r, p, u: Message(role="assistant", parts=(*r, *p, *u)), st.lists(reasoning, max_size=1), st.lists(plain, min_size=1, max_size=2), st.lists(calls, max_size=2))
    turns = st.lists(st.tuples(user | results, assistant), max_size=2).map(lambda pairs: tuple(m for pair in pairs for m in pair))
    tools = st.lists(st.builds(Tool, name=NAMES, description=st.none() | WORDS, parameters=SCHEMAS, strict=st.booleans()), max_size=2)
    schema = st.none() | st.builds(lambda s: {"name": "x", "schema": s, "strict": True}, SCHEMAS)
    extra = st.dictionaries(st.sampled_from(["prompt_cache_key", "reasoning_effort", "verbosity", "safety_identifier"]), st.just("low"))
    return st.builds(
        Prompt, messages=turns, tools=tools.map(tuple), tool_choice=CHOICES, parallel_tool_calls=st.none() | st.booleans(),
        response_schema=schema, extra=extra, **{**common(), "stop": st.just(())},
    ).filter(_with_tools)
