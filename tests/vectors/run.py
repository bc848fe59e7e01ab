"""All vectors of a file through one gateway: each has a backend of its own, so what was priced shows which it was."""
from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx

from gateway.core import clock
from gateway.metering import prices
from gateway.metering.rows import RATES
from gateway.web import front
from tests.build import PLAIN, Gateway
from tests.upstream import Upstream
from tests.vectors import compare, wire

TODAY = "2026-11-15T12:00:00Z"
"""When a vector happens that does not say."""
COLUMNS = {"cache_read": "cached"}
OWN_MODELS = ("self-priced/", "local/", "unknown/")
"""How models are called whose price is the operator's affair, whoever serves them."""
TEAM = "vectors"


class Result(NamedTuple):
    """A vector's id and what was not exact about it."""

    id: str
    misses: list[str]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def run(vectors: Sequence[dict[str, Any]]) -> list[Result]:
    """Sends each through the gateway, then compares the ledger's entries."""
    aliases = [f"v{number}" for number in range(len(vectors))]
    with tempfile.TemporaryDirectory() as folder, Upstream() as upstream, _clock() as clock:
        sites = [upstream.site(alias) for alias in aliases]
        config = {
            "backends": {alias: wire.backend(v, site.url, alias) for v, site, alias in zip(vectors, sites, aliases, strict=True)},
            "passthrough": {f"/{alias}": alias for v, alias in zip(vectors, aliases, strict=True) if v["api"] not in wire.DIALECTS},
        }
        policy = {**PLAIN, "normalize": {"level": "off"}}
        answers = []
        with Gateway(Path(folder), config, {TEAM: policy}, own_prices(vectors)) as gateway:
            for vector, site, alias in zip(vectors, sites, aliases, strict=True):
                site.says(wire.reply(vector))
                clock.set((vector.get("context") or {}).get("at") or TODAY)
                answers.append(gateway.chat(wire.body(vector, alias), team=TEAM, path=wire.path(vector, alias)))
            asked = zip(vectors, answers, aliases, strict=True)
            return [Result(vector["id"], _misses(gateway, vector, answer, alias)) for vector, answer, alias in asked]


def _misses(gateway: Gateway, vector: dict[str, Any], answer: httpx.Response, alias: str) -> list[str]:
    call = answer.headers.get("x-tollway-call") or _booked(gateway, alias)
    if call is None:
        return [f"no call was booked: {answer.status_code} {answer.text[:200]}"]
    return compare.differences(vector, gateway.call(call)["attempts"][-1])


def _booked(gateway: Gateway, alias: str) -> str | None:
    """The call that was answered with an error, and so without its name."""
    rows = gateway.ask("GET", f"/tollway/usage?by=call_id&since=2020-01-01&model={alias}").json().get("rows", ())
    return next((row["call_id"] for row in rows), None)


def own_prices(vectors: Sequence[dict[str, Any]]) -> str:
    """The operator's price file: for providers that the shipped book does not know, self-hosted ones above all, the vector's list."""
    known = {name for file in prices.load().files for name in file} | prices.PROVIDERS.keys()
    rows: dict[str, dict[str, str]] = {}
    for vector in vectors:
        if vector["provider"] not in known or vector["model"].startswith(OWN_MODELS):
            columns = {COLUMNS.get(n, n.removeprefix("cache_")): price for n, price in (vector.get("price_list") or {}).items()}
            columns = {name: price for name, price in columns.items() if name in RATES}
            if not columns:
                continue
            text = ", ".join(f'{name} = "{price}"' for name, price in columns.items())
            rows.setdefault(vector["provider"], {})[vector["model"]] = f'  {{model = "{vector["model"]}", {text}}},'
    tables = (f'[{name}]\nsource = "vectors"\nchecked_on = 2026-11-30\nrows = [\n' + "\n".join(each.values()) + "\n]\n" for name, each in rows.items())
    return "\n".join(tables)


class _clock:
    """The front door's clock, set to the moment of a vector: prices are dated."""

    def __enter__(self) -> _clock:
        self._now = 0
        front.clock = SimpleNamespace(now_us=lambda: self._now // 1_000)  # type: ignore[attr-defined,assignment]
        return self

    def set(self, iso: str) -> None:
        self._now = int(datetime.fromisoformat(iso).timestamp()) * 10**9

    def __exit__(self, *_: object) -> None:
        front.clock = clock  # type: ignore[attr-defined]
