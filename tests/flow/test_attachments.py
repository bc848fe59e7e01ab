"""Images, files and stored conversations count by what they may come to, not by the bytes in which a request names them."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body
from tests.flow.test_responses import PATH, response
from tests.upstream import Site, Upstream, whole

PNG = "iVBORw0KGgoA" * 100_000
"""1.2 MB; at a token a byte 4.80 dollars by the dearest of the tests' rates, as an image 0.08 at most."""


@pytest.fixture
def site(upstream: Upstream) -> Site:
    return upstream.site("attached")


def gateway(folder: Path, site: Site, limit_usd: float, window: int = 1_000_000, **fields: Any) -> Gateway:
    policy = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": limit_usd}], **fields}
    models = {site.model: {"upstream": site.model, "context_tokens": window}}
    return Gateway(folder, {"backends": {"up": backend(site, speaks=["chat", "responses"], models=models, media_urls="pass")}}, {"plain": policy})


def picture(url: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]


def asked(model: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": content}]}


def test_an_embedded_image_counts_as_an_image(site: Site, tmp_path: Path) -> None:
    """A screenshot of a megabyte fits a model's window, a small budget and a limit of tokens a minute."""
    site.says(whole(chat_answer()))
    with gateway(tmp_path, site, 0.10, 100_000, limits={"tokens_per_minute": 20_000}) as running:
        answer = running.chat(asked(site.model, picture(f"data:image/png;base64,{PNG}")))
        assert answer.status_code == 200
        text = running.chat(chat_body(site.model, PNG, max_tokens=9))
        assert (text.status_code, text.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("content", [
    {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PNG}"}},
    {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}},
], ids=["pdf", "sound"])  # fmt: skip
def test_embedded_files_and_sounds_do_not_count_by_their_bytes(site: Site, tmp_path: Path, content: dict[str, Any]) -> None:
    """They fit where the provider takes them: 1.2 MB are no 300,000 tokens of text, and no more than a window of them is reserved."""
    site.says(whole(chat_answer()))
    with gateway(tmp_path, site, 1.0, 100_000, limits={"tokens_per_minute": 20_000}) as running:
        answer = running.chat(asked(site.model, [content]))
        assert answer.status_code == 200, answer.text


def test_what_is_only_named_is_reserved_too(site: Site, tmp_path: Path) -> None:
    """A link is a few bytes and may cost 0.08 dollars: it is refused where a text of its length is served."""
    site.says(whole(chat_answer()))
    with gateway(tmp_path, site, 0.05) as running:
        assert running.chat(chat_body(site.model, "https://a.example/b.png", max_tokens=9)).status_code == 200
        answer = running.chat(asked(site.model, picture("https://a.example/b.png")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (402, "budget_exceeded")


def test_a_stored_conversation_counts_with_all_that_it_has(site: Site, tmp_path: Path) -> None:
    """The short one goes on; the long one may cost 0.80 dollars more, and so may one that nobody here has seen."""
    usage = {"input_tokens": 200_000, "output_tokens": 5, "total_tokens": 200_005}
    with gateway(tmp_path, site, 1.0) as running:
        for name, more in (("resp_short", {}), ("resp_long", {"usage": usage})):
            site.says(whole(response(id=name, **more)))
            assert running.chat({"model": site.model, "input": "hi", "max_output_tokens": 9}, path=PATH).status_code == 200
        site.says(whole(response(id="resp_next")))
        statuses = {}
        for name in ("resp_short", "resp_long", "resp_elsewhere"):
            body = {"model": site.model, "input": "go on", "max_output_tokens": 9, "previous_response_id": name}
            statuses[name] = running.chat(body, path=PATH).status_code
    assert statuses == {"resp_short": 200, "resp_long": 402, "resp_elsewhere": 402}
