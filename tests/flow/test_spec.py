"""Every management endpoint by its own schema: what fits it, what nearly does, and what does not; never a 5xx of ours (C15).

The endpoints and their schemas are Litestar's own account of the handlers, so a new one is tried without a word here.
`TOLLWAY_ODD=20000` tries each of them a hundred times as often.
"""
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litestar import Litestar
from litestar.openapi import OpenAPIConfig

from gateway.web import admin, books, health, people, routes, watched
from tests.build import PLAIN, Process, backend, chat_answer
from tests.flow.test_odd import ODD, WORDS, Line, check, request
from tests.upstream import Upstream, whole

EXAMPLES = max(int(os.environ.get("TOLLWAY_ODD", 0)) // 10, 20)
pytestmark = pytest.mark.timeout(600 + EXAMPLES)
HANDLERS = [*health.HANDLERS, *routes.HANDLERS, *admin.HANDLERS, *people.HANDLERS, *books.HANDLERS, *watched.HANDLERS]
SPEC = Litestar(route_handlers=HANDLERS, openapi_config=OpenAPIConfig(title="t", version="1")).openapi_schema.to_schema()
Json = dict[str, Any]


class Operation(NamedTuple):
    """What may be asked."""

    method: str
    path: str
    parameters: list[Json]
    body: Json | None


def operations() -> list[Operation]:
    found = []
    for path, item in SPEC["paths"].items():
        for method, said in item.items():
            if method == "head":        # as GET, without the body
                continue
            body = said.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            found.append(Operation(method.upper(), path, said.get("parameters", []), body))
    return found


def fitting(schema: Json) -> st.SearchStrategy[Any]:
    """Values that the schema allows, as far as it says."""
    if "$ref" in schema:
        return fitting(SPEC["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "oneOf" in schema:
        return st.one_of([fitting(each) for each in schema["oneOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object":
            return _objects(schema)
        case "array":
            return st.lists(near(schema["items"]), max_size=4)
        case "integer":
            return st.integers(int(schema.get("minimum", -(2**62))), int(schema.get("maximum", 2**62)))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "string":
            return _strings(schema)
        case _:
            return st.sampled_from(ODD)


def near(schema: Json) -> st.SearchStrategy[Any]:
    """What fits, three times in four."""
    return st.integers(0, 3).flatmap(lambda n: fitting(schema) if n else st.sampled_from(ODD))


def _strings(schema: Json) -> st.SearchStrategy[str]:
    if schema.get("format") == "date":
        return st.dates().map(str)
    usual = st.sampled_from(["plain", "UTC", "2026-11-01", "2026-12-01", "openai", "m", "Europe/Berlin", "input", "x" * 600])
    return usual | st.text(max_size=min(schema.get("maxLength", 40), 40))


def _objects(schema: Json) -> st.SearchStrategy[Json]:
    fields = schema.get("properties", {})
    required = {name: near(fields[name]) for name in schema.get("required", ())}
    optional = {name: near(each) for name, each in fields.items() if name not in required}
    some = st.fixed_dictionaries(required, optional=optional)
    more = schema.get("additionalProperties")
    return st.builds(lambda one, other: {**one, **other}, some, st.dictionaries(st.text(max_size=8), near(more), max_size=3)) if more else some


@pytest.fixture(scope="module")
def process(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    site = upstream.site("spec")
    site.says(whole(chat_answer()))
    with Process(tmp_path_factory.mktemp("spec"), {"backends": {"b": backend(site)}}, {"plain": PLAIN}) as process:
        yield process
        assert "Traceback" not in process.text()


@pytest.fixture(scope="module")
def ids(process: Process) -> list[str]:
    """Of things that there are."""
    person = process.ask("POST", "/tollway/admin/users", json={"subject": "s", "issuer": "https://i", "team": "plain"})
    process.ask("POST", "/tollway/admin/projects", json={"team": "plain", "name": "p"})
    return [process.make_key("plain")["id"], person.json().get("id", "x"), "plain", "p"]


def test_the_schema_has_what_the_operator_uses() -> None:
    """An empty account of the handlers would pass all the rest."""
    assert {("POST", "/tollway/admin/keys"), ("PATCH", "/tollway/admin/keys/{key_id}"), ("POST", "/tollway/admin/rerate")} <= {
        (each.method, each.path) for each in operations()
    }
    assert len(operations()) >= 34


@pytest.mark.parametrize("operation", operations(), ids=lambda each: f"{each.method} {each.path}")
def test_what_fits_and_what_does_not(process: Process, ids: list[str], operation: Operation) -> None:
    key = process.key() if operation.path.endswith("drain") else process.admin_key      # an admin's would end the gateway
    line = Line(process)

    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def asked(data: st.DataObject) -> None:
        path, query = operation.path, []
        for each in operation.parameters:
            value = data.draw(st.sampled_from([*ids, *WORDS]) if each["in"] == "path" else near(each["schema"]).map(str), each["name"])
            word = quote(value, safe="%", errors="replace")
            if each["in"] == "path":
                path = path.replace("{" + each["name"] + "}", word)
            else:
                query.append(f"{each['name']}={word[:2_000]}")
        body = b"" if operation.body is None else json.dumps(data.draw(near(operation.body), "body")).encode()
        sent = request(key, path + ("?" + "&".join(query) if query else ""), body, operation.method)
        check(sent, line.send(sent))

    try:
        asked()
    finally:
        line.close()
    assert process.process.alive
