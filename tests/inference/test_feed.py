"""The engine's word on its cache, live, in the gateway's forecast."""

from __future__ import annotations

from pathlib import Path

from tests.build import PLAIN, Gateway, chat_body
from tests.inference.served import served
from tests.upstream import until


def test_what_the_engine_evicts_is_no_longer_foreseen(tmp_path: Path) -> None:
    """Its events reach the index: a prefix that others pushed out is foreseen as a miss, and is one."""
    with served(kv_tokens=512) as url:
        backend = {"dialect": "openai", "url": f"{url}/v1", "models": ["tiny"], "cache_salt": True, "kv_events": "/kv_events"}
        with Gateway(tmp_path, {"backends": {"own": backend}}, {"a": {**PLAIN, "cache": {"hold_out": 0}}}) as gateway:
            assert gateway.asgi.services is not None
            feed = gateway.asgi.services.live.feeds["own"]
            until(lambda: feed.heard, "the feed")

            def ask(word: str) -> tuple[int, int]:
                answer = gateway.chat(chat_body("tiny", f"{word} " * 50, max_tokens=1), "a")
                assert answer.status_code == 200, answer.text
                call = gateway.call(answer.headers["x-tollway-call"])
                return call["prefix"]["predicted_read"], call["attempts"][0]["tokens"]["cache_read"]

            ask("road")
            foreseen, read = ask("road")
            assert (foreseen > 200, read > 200) == (True, True)
            evicted: list[int | None] = []
            tell, feed.told = feed.told, lambda backend, tokens: (evicted.append(tokens), tell(backend, tokens))[1]
            for word in ("seas", "hill"):
                ask(word)
            until(lambda: sum(tokens or 0 for tokens in evicted) > 200, "what was evicted")
            foreseen, read = ask("road")
            assert read < 100
            assert foreseen <= read + 128, "to one of the marks that eviction is followed by: 128 bytes, which are tokens here"
