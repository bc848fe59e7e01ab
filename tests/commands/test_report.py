"""`tollway report` and `why` against a running gateway: every figure whole, whatever the width of the terminal."""
from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.commands.report import _print_warmed
from tests.build import Gateway, chat_answer, chat_body
from tests.upstream import Site, whole


def run(gateway: Gateway, *argv: str) -> str:
    admin = (gateway.folder / "data" / "keys" / "admin").read_text().strip()
    done = CliRunner().invoke(main, [*argv, "--url", gateway.url, "--key", admin], env={"COLUMNS": "40"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("report", "figures"), [
    ("spend", ["uncached", "cache_read", "cost", "$0.000160"]),
    ("latency", ["p50", "p95", " ms"]),
    ("cache", ["cache_share"]),
    ("routing", ["retries"]),
])
def test_a_report_is_never_cut(gateway: Gateway, openai: Site, report: str, figures: list[str]) -> None:
    """Forty columns or four hundred: the same figures."""
    openai.says(whole(chat_answer(usage={"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}})))
    assert gateway.chat(chat_body(openai.model)).status_code == 200
    text = run(gateway, "report", report, "--by", "model", "--model", openai.model)
    assert openai.model in text
    assert "…" not in text
    for figure in figures:
        assert figure in text


def test_an_unknown_cost_is_told(gateway: Gateway, openai: Site) -> None:
    """How many attempts there are that no sum of money has; only where there are any."""
    openai.says(whole(chat_answer()), whole(chat_answer(model="nobody-knows-it")))
    assert gateway.chat(chat_body(openai.model)).status_code == 200
    known = run(gateway, "report", "spend", "--by", "model", "--model", openai.model)
    assert "unknown" not in known
    assert "unpriced" not in known
    assert gateway.chat(chat_body(openai.model)).status_code == 200
    for report in ("spend", "routing"):
        text = run(gateway, "report", report, "--by", "model", "--model", openai.model)
        assert "The cost of 1 of 2 attempts is unknown and in no sum of money here." in text
        assert "unpriced" in text


def test_why_tells_the_whole_story(gateway: Gateway, openai: Site) -> None:
    """Reason, attempts, tokens by class, price rows and every lane."""
    openai.says(whole(chat_answer()))
    call = gateway.chat(chat_body(openai.model)).headers["x-tollway-call"]
    text = run(gateway, "why", call)
    for word in (call, "only lane that can serve", "uncached", "price rows", "m-*", "chosen"):
        assert word in text


def test_what_the_gateways_own_calls_brought_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"kind": "pre_warm", "calls": 1, "cost_usd": "0.02", "looked": 1, "of_use": 1, "saved_usd": "0.03"}
    _print_warmed([one, {**one, "kind": "keep_warm", "calls": 2_000, "cost_usd": None, "looked": 500}])
    assert capsys.readouterr().out == (
        "pre_warm: 1 call, $0.020000; 1 were of use, which saved $0.030000\n"
        "keep_warm: 2,000 calls, unknown; 1 of the latest 500 were of use, which saved $0.030000\n"
    )


def test_a_miss_is_explained_and_summed(gateway: Gateway, openai: Site) -> None:
    """What changed, where, what it lost, and what to do; in the call, and in the list of what to mend first."""
    usage = {"prompt_tokens": 4_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}
    openai.says(whole(chat_answer(usage=usage)), whole(chat_answer(usage=usage)))
    for clock in ("10:00", "10:05"):
        messages = [{"role": "system", "content": f"Keep to the rules. {'They are many. ' * 99}\nCurrent time: {clock}"}, {"role": "user", "content": "hi"}]
        answer = gateway.chat({"model": openai.model, "messages": messages})
        assert answer.status_code == 200
    text = run(gateway, "why", answer.headers["x-tollway-call"])
    for word in ("missed: timestamp at /messages/0/content, characters", "tokens would have been read", "Take the time out"):
        assert word in text
    text = run(gateway, "report", "cache", "--by", "model", "--model", openai.model)
    for word in ("what to mend first", "timestamp", "/messages/*/content", "a month"):
        assert word in text
    found = json.loads(run(gateway, "report", "cache", "--model", openai.model, "--json"))
    (cause,) = found["misses"]
    assert (cause["calls"], cause["kind"], cause["team"]) == (1, "timestamp", "plain")
    assert all(one["note"].startswith("not enough data") for one in found["savings"])
