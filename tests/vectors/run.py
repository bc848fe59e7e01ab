"""All vectors of a file through one gateway: each has a backend of its own, so what was priced shows which it was."""
from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from gateway.metering import prices
from gateway.web import front
from tests.build import PLAIN, Gateway
from tests.upstream import Upstream
from tests.vectors import compare, wire

TODAY = "2026-11-15T12:00:00Z"
"""When a vector happens that does not say."""
COLUMNS = {"cache_read": "cached"}
TEAM = "vectors"


class Result(NamedTuple):
    """A vector's id and what was not exact about it."""

    id: str
    misses: list[str]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def run(vectors: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """Sends each through the gateway and compares its ledger entry."""
    aliases = [f"v{number}" for number in range(len(vectors))]
    with tempfile.TemporaryDirectory() as folder, Upstream() as upstream, _clock() as clock:
        sites = [upstream.site(alias) for alias in aliases]
        config = {
            "backends": {alias: wire.backend(v, site.url, alias) for v, site, alias in zip(vectors, sites, aliases, strict=True)},
            "passthrough": {f"/{alias}": alias for v, alias in zip(vectors, aliases, strict=True) if v["api"] not in wire.DIALECTS},
        }
        policy = {**PLAIN, "normalize": {"level": "off"}}
        with Gateway(Path(folder), config, {TEAM: policy}, own_prices(vectors)) as gateway:
            for vector, site, alias in zip(vectors, sites, aliases, strict=True):
                site.says(wire.reply(vector))
                clock.set((vector.get("context") or {}).get("at") or TODAY)
                yield Result(vector["id"], _one(gateway, vector, alias))


def _one(gateway: Gateway, vector: dict[str, Any], alias: str) -> list[str]:
    answer = gateway.chat(wire.body(vector, alias), team=TEAM, path=wire.path(vector, alias))
    call = answer.headers.get("x-tollway-call")
    if call is None:
        return [f"no call was booked: {answer.status_code} {answer.text[:200]}"]
    return compare.differences(vector, gateway.call(call)["attempts"][-1])


def own_prices(vectors: Sequence[dict[str, Any]]) -> str:
    """A price file for providers that have none in the shipped book, self-hosted ones above all: the vector's list is the operator's."""
    known = {name for file in prices.load().files for name in file} | prices.PROVIDERS.keys()
    rows: dict[str, dict[str, str]] = {}
    for vector in vectors:
        if vector["provider"] not in known:
            columns = {COLUMNS.get(n, n.removeprefix("cache_")): price for n, price in (vector.get("price_list") or {}).items()}
            text = ", ".join(f'{name} = "{price}"' for name, price in columns.items())
            rows.setdefault(vector["provider"], {})[vector["model"]] = f'  {{model = "{vector["model"]}", {text}}},'
    tables = (f'[{name}]\nsource = "vectors"\nchecked_on = 2026-11-30\nrows = [\n' + "\n".join(each.values()) + "\n]\n" for name, each in rows.items())
    return "\n".join(tables)


class _clock:
    """The front door's clock, set to the moment of a vector: prices are dated."""

    def __enter__(self) -> _clock:
        self._now = 0
        front.time = SimpleNamespace(time_ns=lambda: self._now, time=time.time)  # type: ignore[attr-defined,assignment]
        return self

    def set(self, iso: str) -> None:
        self._now = int(datetime.fromisoformat(iso).timestamp()) * 10**9

    def __exit__(self, *_: object) -> None:
        front.time = time  # type: ignore[attr-defined]
