"""`tollway report` and `why` against a running gateway: every figure whole, whatever the width of the terminal."""
from __future__ import annotations

import pytest
from click.testing import CliRunner

from gateway.cli import main
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


def test_why_tells_the_whole_story(gateway: Gateway, openai: Site) -> None:
    """Reason, attempts, tokens by class, price rows and every lane."""
    openai.says(whole(chat_answer()))
    call = gateway.chat(chat_body(openai.model)).headers["x-tollway-call"]
    text = run(gateway, "why", call)
    for word in (call, "only lane that can serve", "uncached", "price rows", "m-*", "chosen"):
        assert word in text
