"""Prices in force follow their files, while calls go on."""
from __future__ import annotations

import os
from pathlib import Path

from tests.build import PLAIN, PRICES, Gateway, backend, chat_answer, chat_body
from tests.upstream import Upstream, until, whole


def write(folder: Path, text: str) -> None:
    (folder / "new.toml").write_text(text)
    os.replace(folder / "new.toml", folder / "prices.toml")


def test_an_edited_price_counts_within_seconds(upstream: Upstream, tmp_path: Path) -> None:
    """A bad file keeps the old prices in force and is told; a good one applies to what is booked from then on, and to what a call
    may cost at most."""
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    cap = {"budgets": [{"name": "cap", "limit_usd": 1}]}
    with Gateway(tmp_path, {"backends": {"b": backend(site)}}, {"plain": {**PLAIN, **cap}}) as gateway:

        def cost() -> float | None:
            answer = gateway.chat(chat_body(site.model, max_tokens=1_000))
            return float(answer.headers["x-tollway-cost-usd"]) if answer.status_code == 200 else None

        assert cost() == 0.00016
        write(tmp_path, PRICES.replace('input = "2"', 'input = "two"'))
        notes = until(lambda: gateway.http.get(gateway.url + "/readyz").json()["notes"], "the bad file to be noticed")
        assert "prices.toml" in notes[0]
        assert gateway.metric("tollway_price_problems") == 1
        assert cost() == 0.00016
        write(tmp_path, PRICES.replace('input = "2"', 'input = "4"'))
        until(lambda: cost() == 0.00024, "the new price")
        assert gateway.http.get(gateway.url + "/readyz").json()["notes"] == []
        write(tmp_path, PRICES.replace('output = "10"', 'output = "2000"'))
        until(lambda: cost() is None, "a call to be too dear for the budget")
