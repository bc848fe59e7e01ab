"""Both vendors' own clients, sync and async, against backends of both dialects: change the base URL and the key, nothing else."""
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest

from tests.build import (
    DONE,
    STOP,
    Gateway,
    chat_answer,
    chat_chunk,
    chat_stream,
    chat_usage,
    event,
    messages_answer,
    messages_start,
    messages_stream,
)
from tests.upstream import End, Reply, Site, stream, whole

Fresh = Callable[[str], Site]
EITHER = pytest.mark.parametrize("backend", ["openai", "anthropic"])
"""The dialect of the backend behind the gateway."""


@pytest.fixture
def openai_client(gateway: Gateway) -> Iterator[openai_sdk.OpenAI]:
    with openai_sdk.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key(), max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(gateway: Gateway) -> Iterator[anthropic_sdk.Anthropic]:
    with anthropic_sdk.Anthropic(base_url=gateway.url, api_key=gateway.key(), max_retries=0) as client:
        yield client


@pytest.fixture
async def openai_async(gateway: Gateway) -> AsyncIterator[openai_sdk.AsyncOpenAI]:
    async with openai_sdk.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key(), max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropic_async(gateway: Gateway) -> AsyncIterator[anthropic_sdk.AsyncAnthropic]:
    async with anthropic_sdk.AsyncAnthropic(base_url=gateway.url, api_key=gateway.key(), max_retries=0) as client:
        yield client


def says_hello(site: Site, backend: str, *, streamed: bool) -> None:
    if streamed:
        site.says(stream(*(chat_stream() if backend == "openai" else messages_stream())))
    else:
        site.says(whole(chat_answer() if backend == "openai" else messages_answer()))


HELLO: Any = [{"role": "user", "content": "Say hello."}]


# a plain answer


@EITHER
def test_openai_whole(openai_client: openai_sdk.OpenAI, fresh: Fresh, backend: str) -> None:
    """Text, finish reason and the caches' counts arrive, whichever dialect the backend speaks."""
    site = fresh(backend)
    says_hello(site, backend, streamed=False)
    answer = openai_client.chat.completions.create(model=site.model, messages=HELLO)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    counts = answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens, answer.usage.completion_tokens
    assert counts == (100, 60, 5)


@EITHER
def test_openai_stream(openai_client: openai_sdk.OpenAI, fresh: Fresh, backend: str) -> None:
    """Deltas, one finish reason, one usage chunk, an end."""
    site = fresh(backend)
    says_hello(site, backend, streamed=True)
    chunks = list(openai_client.chat.completions.create(
        model=site.model, messages=HELLO, stream=True, stream_options={"include_usage": True}
    ))  # fmt: skip
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello there."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == ["stop"]
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(100, 5)]


@EITHER
async def test_openai_async(openai_async: openai_sdk.AsyncOpenAI, fresh: Fresh, backend: str) -> None:
    """Several at once, streams among them."""
    site = fresh(backend)
    site.says(*[whole(chat_answer() if backend == "openai" else messages_answer())] * 5)
    answers = await asyncio.gather(*(openai_async.chat.completions.create(model=site.model, messages=HELLO) for _ in range(5)))
    assert {answer.choices[0].message.content for answer in answers} == {"Hello there."}
    says_hello(site, backend, streamed=True)
    text = ""
    async for chunk in await openai_async.chat.completions.create(model=site.model, messages=HELLO, stream=True):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert text == "Hello there."


@EITHER
def test_anthropic_whole(anthropic_client: anthropic_sdk.Anthropic, fresh: Fresh, backend: str) -> None:
    """Cached tokens stand beside the input, as this SDK counts."""
    site = fresh(backend)
    says_hello(site, backend, streamed=False)
    answer = anthropic_client.messages.create(model=site.model, max_tokens=64, messages=HELLO)
    assert [block.text for block in answer.content if block.type == "text"] == ["Hello there."]
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (40, 60, 5)


@EITHER
def test_anthropic_stream(anthropic_client: anthropic_sdk.Anthropic, fresh: Fresh, backend: str) -> None:
    """The SDK's own accumulator ends up with the whole message and its usage."""
    site = fresh(backend)
    says_hello(site, backend, streamed=True)
    with anthropic_client.messages.stream(model=site.model, max_tokens=64, messages=HELLO) as events:
        assert "".join(events.text_stream) == "Hello there."
        message = events.get_final_message()
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (40, 60, 5)


@EITHER
async def test_anthropic_async(anthropic_async: anthropic_sdk.AsyncAnthropic, fresh: Fresh, backend: str) -> None:
    """A bearer token instead of x-api-key is as good, and streams stream."""
    site = fresh(backend)
    says_hello(site, backend, streamed=True)
    async with anthropic_async.messages.stream(model=site.model, max_tokens=64, messages=HELLO) as events:
        assert "".join([text async for text in events.text_stream]) == "Hello there."
    says_hello(site, backend, streamed=False)
    token = str(anthropic_async.api_key)
    async with anthropic_sdk.AsyncAnthropic(base_url=anthropic_async.base_url, auth_token=token, api_key=None, max_retries=0) as bearer:
        assert (await bearer.messages.create(model=site.model, max_tokens=64, messages=HELLO)).stop_reason == "end_turn"


# tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": SCHEMA}}]
MESSAGES_TOOLS: Any = [{"name": "weather", "description": "Look.", "input_schema": SCHEMA}]


def calls_two_tools(site: Site, backend: str, *, streamed: bool) -> None:
    """Two parallel calls, weather of Oslo and of Rome."""
    cities = ("Oslo", "Rome")
    if backend == "openai" and not streamed:
        calls = [{"id": f"call_{c}", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": c})}} for c in cities]
        answer = chat_answer()
        answer["choices"][0] |= {"message": {"role": "assistant", "content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
        site.says(whole(answer))
    elif backend == "openai":
        parts = [chat_chunk({"role": "assistant", "content": None})]
        for n, city in enumerate(cities):
            head = {"index": n, "id": f"call_{city}", "type": "function", "function": {"name": "weather", "arguments": ""}}
            pieces = ['{"ci', f'ty": "{city}"', "}"]
            parts += [chat_chunk({"tool_calls": [head]})]
            parts += [chat_chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}) for piece in pieces]
        site.says(stream(*parts, chat_chunk({}, "tool_calls"), chat_usage(), DONE))
    elif not streamed:
        blocks = [{"type": "tool_use", "id": f"call_{c}", "name": "weather", "input": {"city": c}} for c in cities]
        site.says(whole(messages_answer(content=blocks, stop_reason="tool_use")))
    else:
        parts = [messages_start()]
        for n, city in enumerate(cities):
            block = {"type": "tool_use", "id": f"call_{city}", "name": "weather", "input": {}}
            parts.append(event({"type": "content_block_start", "index": n, "content_block": block}))
            parts += [event({"type": "content_block_delta", "index": n, "delta": {"type": "input_json_delta", "partial_json": piece}})
                      for piece in ("", '{"ci', f'ty": "{city}"', "}")]  # fmt: skip
            parts.append(event({"type": "content_block_stop", "index": n}))
        finish = event({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 5}})
        site.says(stream(*parts, finish, STOP))


@EITHER
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_openai_tools(openai_client: openai_sdk.OpenAI, fresh: Fresh, backend: str, streamed: bool) -> None:
    """Parallel calls keep their ids, names and arguments; the results go back and the second turn works."""
    site = fresh(backend)
    calls_two_tools(site, backend, streamed=streamed)
    if streamed:
        with openai_client.chat.completions.stream(model=site.model, messages=HELLO, tools=CHAT_TOOLS) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = openai_client.chat.completions.create(model=site.model, messages=HELLO, tools=CHAT_TOOLS).choices[0].message
    calls = message.tool_calls or []
    assert [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls if call.type == "function"] == [
        ("call_Oslo", "weather", {"city": "Oslo"}), ("call_Rome", "weather", {"city": "Rome"}),
    ]  # fmt: skip
    says_hello(site, backend, streamed=False)
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "12 degrees"} for call in calls]
    second = openai_client.chat.completions.create(
        model=site.model, messages=[*HELLO, message.to_dict(), *results], tools=CHAT_TOOLS  # type: ignore[list-item]
    )
    assert second.choices[0].message.content == "Hello there."
    sent = site.requests[1].json
    if backend == "anthropic":
        assert [block["tool_use_id"] for block in sent["messages"][-1]["content"]] == ["call_Oslo", "call_Rome"]
    assert (sent["tools"][0].get("input_schema") or sent["tools"][0]["function"]["parameters"]) == SCHEMA


@EITHER
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_anthropic_tools(anthropic_client: anthropic_sdk.Anthropic, fresh: Fresh, backend: str, streamed: bool) -> None:
    """The same from the other side."""
    site = fresh(backend)
    calls_two_tools(site, backend, streamed=streamed)
    if streamed:
        with anthropic_client.messages.stream(model=site.model, max_tokens=64, messages=HELLO, tools=MESSAGES_TOOLS) as events:
            message = events.get_final_message()
    else:
        message = anthropic_client.messages.create(model=site.model, max_tokens=64, messages=HELLO, tools=MESSAGES_TOOLS)
    assert message.stop_reason == "tool_use"
    blocks = [block for block in message.content if block.type == "tool_use"]
    assert [(block.id, block.name, block.input) for block in blocks] == [
        ("call_Oslo", "weather", {"city": "Oslo"}), ("call_Rome", "weather", {"city": "Rome"}),
    ]  # fmt: skip
    says_hello(site, backend, streamed=False)
    results: Any = [{"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees"} for block in blocks]
    said: Any = [block.to_dict() for block in message.content]
    second = anthropic_client.messages.create(
        model=site.model, max_tokens=64, tools=MESSAGES_TOOLS,
        messages=[*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": results}],
    )  # fmt: skip
    assert second.stop_reason == "end_turn"
    sent = site.requests[1].json
    if backend == "openai":
        assert [message["tool_call_id"] for message in sent["messages"] if message["role"] == "tool"] == ["call_Oslo", "call_Rome"]


# errors

ERRORS = [
    pytest.param({"model": "no-such-model"}, {}, "NotFoundError", 404, id="unknown model"),
    pytest.param({"messages": "hello"}, {}, "BadRequestError", 400, id="messages that are none"),
    pytest.param({"max_tokens": -1}, {}, "BadRequestError", 400, id="negative max_tokens"),
    pytest.param({}, {"api_key": "tw_nobody"}, "AuthenticationError", 401, id="wrong key"),
]


def options(client: Any, wish: dict[str, str]) -> Any:
    return client.with_options(**wish) if wish else client


@pytest.mark.parametrize(("fields", "wish", "kind", "status"), ERRORS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_openai_errors(
    openai_client: openai_sdk.OpenAI, openai: Site, fields: Any, wish: Any, kind: str, status: int, streamed: bool
) -> None:
    """Each is the SDK's own type, with a message, a code and, where there is one, the field."""
    body = {"model": openai.model, "messages": HELLO, "stream": streamed, **fields}
    with pytest.raises(openai_sdk.APIStatusError) as caught:
        options(openai_client, wish).chat.completions.create(**body)
    error = caught.value
    assert (type(error).__name__, error.status_code) == (kind, status)
    assert error.code
    assert isinstance(error.body, dict)
    assert error.body["message"]
    assert openai.requests == []


@pytest.mark.parametrize(("fields", "wish", "kind", "status"), ERRORS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_anthropic_errors(
    anthropic_client: anthropic_sdk.Anthropic, anthropic: Site, fields: Any, wish: Any, kind: str, status: int, streamed: bool
) -> None:
    """Each is the SDK's own type, in the vendor's shape."""
    body = {"model": anthropic.model, "max_tokens": 64, "messages": HELLO, "stream": streamed, **fields}
    with pytest.raises(anthropic_sdk.APIStatusError) as caught:
        options(anthropic_client, wish).messages.create(**body)
    error = caught.value
    assert (type(error).__name__, error.status_code) == (kind, status)
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert set(error.body["error"]) >= {"type", "message"}
    assert anthropic.requests == []


@pytest.mark.parametrize(("status", "kind"), [
    (400, "BadRequestError"), (401, "InternalServerError"), (404, "NotFoundError"), (413, "APIStatusError"),
    (422, "UnprocessableEntityError"), (429, "RateLimitError"), (500, "InternalServerError"), (503, "InternalServerError"),
])  # fmt: skip
@EITHER
def test_a_backends_errors_have_the_sdks_types(
    openai_client: openai_sdk.OpenAI, anthropic_client: anthropic_sdk.Anthropic, fresh: Fresh, backend: str, status: int, kind: str
) -> None:
    """Whatever shape the backend's error has, its message arrives in both clients; our refused credential is our fault, a 502."""
    site = fresh(backend)
    site.says(whole({"type": "error", "error": {"type": "some_error", "message": "Not today.", "code": None}}, status))
    with pytest.raises(openai_sdk.APIStatusError) as first:
        openai_client.chat.completions.create(model=site.model, messages=HELLO)
    assert type(first.value).__name__ == kind
    if status not in (429, 503):  # the lane is cooling now
        with pytest.raises(anthropic_sdk.APIStatusError) as second:
            anthropic_client.messages.create(model=site.model, max_tokens=64, messages=HELLO)
        assert type(second.value).__name__ in (kind, "ContentTooLargeError")
        assert status == 401 or "Not today." in str(second.value)
    assert status == 401 or "Not today." in str(first.value)


@EITHER
@pytest.mark.parametrize("end", [End.CUT, None], ids=["cut", "clean end"])
def test_a_broken_stream_raises_in_both_clients(
    openai_client: openai_sdk.OpenAI, anthropic_client: anthropic_sdk.Anthropic, fresh: Fresh, backend: str, end: str | None
) -> None:
    """Half an answer never looks like a whole one."""
    site = fresh(backend)
    parts = (chat_stream() if backend == "openai" else messages_stream())[:3]
    broken: Reply = stream(*parts, *([end] if end else []))
    site.says(broken)
    with pytest.raises(openai_sdk.APIError):
        list(openai_client.chat.completions.create(model=site.model, messages=HELLO, stream=True))
    with pytest.raises(anthropic_sdk.APIError):
        list(anthropic_client.messages.create(model=site.model, max_tokens=64, messages=HELLO, stream=True))


# the rest of what the clients offer


def test_models(openai_client: openai_sdk.OpenAI, anthropic_client: anthropic_sdk.Anthropic, openai: Site) -> None:
    """Both lists name the same models; one alone can be asked for, and an unknown one is a 404."""
    names = [model.id for model in openai_client.models.list()]
    assert openai.model in names
    assert [model.id for model in anthropic_client.models.list(limit=1000)] == names
    assert openai_client.models.retrieve(openai.model).id == openai.model
    assert anthropic_client.models.retrieve(openai.model).id == openai.model
    with pytest.raises(openai_sdk.NotFoundError):
        openai_client.models.retrieve("none")
    with pytest.raises(anthropic_sdk.NotFoundError):
        anthropic_client.models.retrieve("none")


def test_raw_responses_show_the_gateways_headers(
    openai_client: openai_sdk.OpenAI, anthropic_client: anthropic_sdk.Anthropic, openai: Site, anthropic: Site
) -> None:
    """`with_raw_response` is how an app reads call id, lane and cost; the vendors' request ids pass."""
    openai.says(whole(chat_answer(), x_request_id="req_o"))
    anthropic.says(whole(messages_answer(), request_id="req_a"))
    first = openai_client.chat.completions.with_raw_response.create(model=openai.model, messages=HELLO)
    second = anthropic_client.messages.with_raw_response.create(model=anthropic.model, max_tokens=64, messages=HELLO)
    for answer in (first, second):
        assert answer.headers["x-tollway-lane"] == "standard"
        assert answer.headers["x-tollway-cost-usd"] == "0.000160000"
        assert answer.headers["x-tollway-call"].startswith("call_")
    assert (first.request_id, second.headers["request-id"]) == ("req_o", "req_a")
    assert first.parse().choices[0].message.content == "Hello there."


def test_structured_output(openai_client: openai_sdk.OpenAI, openai: Site) -> None:
    """The parse helper's schema reaches the backend with its keys in order."""
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        country: str

    openai.says(whole(chat_answer('{"name": "Oslo", "country": "Norway"}')))
    answer = openai_client.chat.completions.parse(model=openai.model, messages=HELLO, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Oslo", country="Norway")
    schema = openai.requests[0].json["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["name", "country"]
