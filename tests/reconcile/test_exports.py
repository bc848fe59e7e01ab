"""Exports in the shapes that the providers document, and what is said of files that are none."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.reconcile.exports import read
from gateway.reconcile.lines import BadFile, kind_of, unit_of

OPENAI_DAY = 1_790_812_800    # 2026-10-01 00:00 UTC


def openai_page(*results: dict[str, Any], **over: Any) -> dict[str, Any]:
    bucket = {"object": "bucket", "start_time": OPENAI_DAY, "end_time": OPENAI_DAY + 86_400, "results": list(results)}
    return {"object": "page", "data": [bucket], "has_more": False, "next_page": None, **over}


def anthropic_page(*results: dict[str, Any], **over: Any) -> dict[str, Any]:
    bucket = {"starting_at": "2026-10-01T00:00:00Z", "ending_at": "2026-10-02T00:00:00Z", "results": list(results)}
    return {"data": [bucket], "has_more": False, "next_page": None, **over}


def saved(folder: Path, *documents: Any) -> Path:
    path = folder / "export"
    path.write_text("\n".join(d if isinstance(d, str) else json.dumps(d) for d in documents))
    return path


def brief(path: Path) -> list[tuple[Any, ...]]:
    export = read(path)
    assert {line.day for line in export.lines} == {"2026-10-01"}
    return [(line.key, line.model, line.tier, line.region, line.kind, line.tokens, line.nanos) for line in export.lines]


OPENAI_USAGE = {
    "object": "organization.usage.completions.result", "input_tokens": 1_000, "input_cached_tokens": 600, "input_cache_write_tokens": 150,
    "input_cache_write_30m_tokens": 100, "input_cache_write_12h_tokens": 50, "output_tokens": 70, "num_model_requests": 3,
    "project_id": "proj_1", "user_id": None, "api_key_id": "key_1", "model": "gpt-5.5-2026-04-01", "batch": False, "service_tier": "priority",
}  # fmt: skip
ANTHROPIC_USAGE = {
    "uncached_input_tokens": 1_500, "cache_creation": {"ephemeral_1h_input_tokens": 1_000, "ephemeral_5m_input_tokens": 500},
    "cache_read_input_tokens": 200, "output_tokens": 500, "server_tool_use": {"web_search_requests": 10}, "api_key_id": "apikey_1",
    "workspace_id": "wrkspc_1", "model": "claude-opus-5-5", "service_tier": "standard", "context_window": "0-200k", "inference_geo": "us",
}  # fmt: skip
ANTHROPIC_COST = {
    "currency": "USD", "amount": "123.78912", "workspace_id": "wrkspc_1", "description": "Claude Opus 5.5 Usage - Input Tokens", "cost_type": "tokens",
    "context_window": "0-200k", "model": "claude-opus-5-5", "service_tier": "batch", "token_type": "cache_creation.ephemeral_1h_input_tokens",
}  # fmt: skip


@pytest.mark.parametrize(("pages", "lines"), [
    pytest.param([openai_page(OPENAI_USAGE)], [
        ("key_1", "gpt-5.5-2026-04-01", "priority", None, "uncached", 250, None), ("key_1", "gpt-5.5-2026-04-01", "priority", None, "cache_read", 600, None),
        ("key_1", "gpt-5.5-2026-04-01", "priority", None, "write_30m", 100, None), ("key_1", "gpt-5.5-2026-04-01", "priority", None, "write_12h", 50, None),
        ("key_1", "gpt-5.5-2026-04-01", "priority", None, "output", 70, None),
    ], id="OpenAI usage: cached and written are inside the input"),
    pytest.param([openai_page({"object": "organization.usage.completions.result", "input_tokens": 9, "output_tokens": 1, "num_model_requests": 1, "batch": True})],
                 [(None, "*", "batch", None, "uncached", 9, None), (None, "*", "batch", None, "output", 1, None)], id="OpenAI usage, batch only"),
    pytest.param([openai_page({"object": "organization.usage.embeddings.result", "input_tokens": 9, "num_model_requests": 1, "model": "e"})],
                 [(None, "e", None, None, "uncached", 9, None)], id="OpenAI embeddings"),
    pytest.param([openai_page({"object": "organization.costs.result", "amount": {"value": 0.06, "currency": "usd"}, "line_item": "gpt-6-astra, input_tokens", "quantity": 30_000, "quantity_unit": "tokens"}),
                  openai_page({"object": "organization.costs.result", "amount": {"value": 1.5, "currency": "usd"}, "line_item": "gpt-4o-2024-08-06, cached input", "project_id": "proj_1"}),
                  openai_page({"object": "organization.costs.result", "amount": {"value": 0.25, "currency": "usd"}, "line_item": "web search tool calls"})],
                 [(None, "gpt-6-astra", None, None, "uncached", 30_000, 60_000_000), ("proj_1", "gpt-4o-2024-08-06", None, None, "cache_read", None, 1_500_000_000),
                  (None, "web search tool calls", None, None, "other", None, 250_000_000)], id="OpenAI costs, three pages"),
    pytest.param([anthropic_page(ANTHROPIC_USAGE)], [
        ("apikey_1", "claude-opus-5-5", "default", "us", kind, tokens, None)
        for kind, tokens in (("uncached", 1_500), ("cache_read", 200), ("write_5m", 500), ("write_1h", 1_000), ("output", 500))
    ], id="Anthropic usage: classes stand beside each other"),
    pytest.param([anthropic_page(ANTHROPIC_COST, {**ANTHROPIC_COST, "cost_type": "web_search", "token_type": None, "amount": "50"})], [
        ("wrkspc_1", "claude-opus-5-5", "batch", None, "write_1h", None, 1_237_891_200), ("wrkspc_1", "claude-opus-5-5", "batch", None, "other", None, 500_000_000),
    ], id="Anthropic cost: cents"),
    pytest.param([anthropic_page({**ANTHROPIC_USAGE, "speed": "fast", "inference_geo": "global", "cache_creation": None, "cache_read_input_tokens": 0, "output_tokens": 0})],
                 [("apikey_1", "claude-opus-5-5", "fast", "", "uncached", 1_500, None)], id="Anthropic, fast and nowhere"),
    pytest.param(["day,key,model,tier,region,class,tokens,cost_usd\n2026-10-01,k,m,Standard,us,Cached Input,5,0.5\n2026-10-01,,m,,,output,,0.25\n"],
                 [("k", "m", "default", "us", "cache_read", 5, 500_000_000), (None, "m", "default", "", "output", None, 250_000_000)], id="CSV"),
    pytest.param(["day,model,class,tokens\n2026-10-01,m,write_5m,5\n"], [(None, "m", None, None, "write_5m", 5, None)], id="the least CSV"),
])  # fmt: skip
def test_an_export_is_lines_of_a_bill(pages: list[Any], lines: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """Every shape gives the same lines: key, model, tier, region, class, tokens, nano-dollars."""
    assert brief(saved(tmp_path, *pages)) == lines


def test_pages_may_stand_in_an_array(tmp_path: Path) -> None:
    assert len(read(saved(tmp_path, [openai_page(OPENAI_USAGE), openai_page(OPENAI_USAGE)])).lines) == 10


@pytest.mark.parametrize(("documents", "says"), [
    (["day,model,tokens\n"], "line 1: no column 'class'"),
    (["day,model,class\n"], "line 1: a bill needs a column tokens, cost_usd"),
    (["day,model,class,tokens\n2026-10-01,m,output,5\n2026-13-01,m,output,5\n"], "line 3:"),
    (["day,model,class,tokens\n2026-10-01,m,outputs,5\n"], "line 2: class 'outputs' is none of"),
    (["day,model,class,tokens\n2026-10-01,m,output,5.5\n"], "line 2: tokens '5.5' is no whole number"),
    (["day,model,class,cost_usd\n2026-10-01,m,output,cheap\n"], "line 2: cost_usd 'cheap' is no number"),
    (["day,model,class,cost_usd\n2026-10-01,m,output,NaN\n"], "line 2: cost_usd 'NaN' is no number"),
    (["day,model,class,cost_usd\n2026-10-01,m,output,Infinity\n"], "line 2: cost_usd 'Infinity' is no number"),
    (["day,model,class,cost_usd\n2026-10-01,m,output,1e999999999\n"], "line 2: the amount '1E+999999999' is none"),
    (["day,model,class,cost_usd\n10/01/2026,m,output,1\n"], "line 2: day '10/01/2026' is none; write 2026-11-30"),
    (["day,model,class,tokens\n"], "holds no usage"),
    (["{"], "is not JSON"), (["[" * 100_000], "nested too deeply"),
    (['{"error": {}}'], "without a list `data`"),
    (['{"data": [{"id": "msg_1"}]}'], "is neither an OpenAI page"),
    ([openai_page(OPENAI_USAGE, has_more=True)], "says has_more"),
    ([openai_page({"object": "organization.usage.completions.result"})], "a bucket is not as openai documents it"),
    ([anthropic_page({"model": "m"})], "a bucket is not as anthropic documents it"),
])
def test_a_bad_file_is_told_with_its_place(documents: list[Any], says: str, tmp_path: Path) -> None:
    """File, line where there is one, and the way out."""
    path = saved(tmp_path, *documents)
    with pytest.raises(BadFile, match=r"export: ") as caught:
        read(path)
    assert says in str(caught.value)


def test_a_page_that_is_followed_by_the_rest_is_whole(tmp_path: Path) -> None:
    """Only the last page may not promise more, whatever the order in the file."""
    assert read(saved(tmp_path, openai_page(OPENAI_USAGE), openai_page(OPENAI_USAGE, has_more=True))).lines


@pytest.mark.parametrize(("amounts", "per_usd", "unit"), [
    (["0.06", "1.5"], 1, 10_000_000), (["0.000001"], 1, 1_000), (["123.78912"], 100, 100), (["0.8958740000000001"], 1, 1), ([], 1, 10_000_000), (["12"], 1, 10_000_000),
])  # fmt: skip
def test_the_step_of_a_bill_is_read_from_its_amounts(amounts: list[str], per_usd: int, unit: int) -> None:
    """What a line may have been rounded to: a cent at most, a nano-dollar at least."""
    assert unit_of(amounts, per_usd) == unit


@pytest.mark.parametrize(("word", "kind"), [("Input", "uncached"), ("cached input", "cache_read"), ("output_tokens", "output"), ("write_1h", "write_1h"), ("seats", "other")])
def test_words_of_bills(word: str, kind: str) -> None:
    assert kind_of(word) == kind
