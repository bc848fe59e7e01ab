"""Drives the cases of `../shared/cases` against a gateway process: their neutral words -> our files, our ledger -> their words.

    python ../shared/cases/tools/drive.py ../shared/cases tests.cases.adapter:Adapter

Fields that are not known here travel on into our files, so that the gateway itself refuses them. Budgets are in a Valkey of the case's own, but where the case sets the clock: windows go by the store's.
"""
from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from caselib import StartFailed  # type: ignore[import-not-found]
from msgspec.structs import replace

from gateway.core.money import nanos, usd
from gateway.core.usage import TokenUsage
from gateway.ledger import Entry
from gateway.ledger.reports import Reports, connect
from gateway.ledger.sql import Store, insert_entries
from tests.build import NotStarted, Process
from tests.cases import clocked
from tests.cases.proxy import KeyProxy
from tests.redis_server import Server
from tests.upstream import until

Json = dict[str, Any]
RATES = {"input": "input", "cached_input": "cached", "cache_write_5m": "write_5m", "cache_write_1h": "write_1h", "output": "output"}
SETTINGS = {  # theirs -> a field of tollway.yaml
    "retries": "retries", "max_retry_wait_ms": "max_retry_wait_ms", "keepalive_ms": "keepalive_ms", "log_level": "log_level",
}  # fmt: skip
BACKEND_SETTINGS = {
    "connect_timeout_ms": "connect_timeout_ms", "read_timeout_ms": "first_byte_timeout_ms", "idle_timeout_ms": "idle_timeout_ms",
}  # fmt: skip
ELSEWHERE = {"fallback", "normalise", "max_upstream_connections", "health_interval_ms", "auto_breakpoints", "auto_breakpoint_ttl"}
"""Settings that become something else below, or that are not needed: we open what is needed, and never probe with calls."""
STATUSES = {
    "ok": "ok", "unpriced": "ok", "failed": "upstream_error", "cut": "incomplete", "unterminated": "incomplete",
    "stalled": "incomplete", "malformed": "incomplete", "orphaned": "incomplete", "sent_unanswered": "timeout", "client_gone": "aborted",
}  # fmt: skip
SOURCES = {"provider": "reported", "estimate": "estimated", "mixed": "estimated", "none": "none"}


_EVEN = {"affinity", "round_robin"}
"""Strategies that spread conversations over lanes that are alike."""


class Adapter:
    """One case."""

    supports = (
        "openai-chat", "openai-responses", "openai-embeddings", "anthropic-messages", "translate-openai-to-anthropic",
        "translate-anthropic-to-openai", "streaming",
        "budgets", "dashboard", "clock", "logs", "reload", "normalise", "multi-backend", "affinity",
        "latency-routing", "signals", "config", "external-store",
    )  # fmt: skip
    health_path = "/healthz"
    fork = False
    """Whether the gateway's process is forked from one that has it loaded; else it is started as a user would."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tollway-case-"))
        self._process: Process | None = None
        self._proxy: KeyProxy | None = None
        self._counters: Server | None = None
        self._reports: Reports | None = None
        self._keys: dict[str, str] = {}
        """The case's keys -> ours."""
        self._ids: dict[str, str] = {}
        """Ids of our keys -> the case's keys."""

    # start and stop

    def start(self, config: Json, env: Mapping[str, str], clock: str | None) -> str:
        _refuse_what_we_cannot_say(config)
        clock_file = self.folder / "clock"
        if clock is not None:
            clocked.write(clock_file, clock)
        if clock is None and any(team.get("budgets") for team in config["teams"]):
            self._counters = Server()
            config = {**config, "redis_url": self._counters.url, "redis_away": "closed"}
        self._write(config)
        try:
            self._process = Process(self.folder, env=env, clock=None if clock is None else clock_file, fork=self.fork)
        except NotStarted as error:
            raise StartFailed(str(error)) from error
        for team in config["teams"]:
            for key in team.get("keys", ()):
                self._add_key(key, team["id"], "member")
        for key in config.get("admin_keys", ()):
            self._add_key(key, "operator", "admin")
        self._proxy = KeyProxy()
        self._proxy.keys = {theirs.encode(): ours.encode() for theirs, ours in self._keys.items()}
        self._proxy.target = self._process.port
        return self._proxy.url

    def stop(self) -> None:
        if self._reports is not None:
            self._reports.close()
        if self._proxy is not None:
            self._proxy.close()
        if self._process is not None:
            self._process.close()
        if self._counters is not None:
            self._counters.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, signal: str) -> str:
        process, proxy = self._running()
        if signal == "TERM":
            process.terminate()
        else:
            process.kill()
        process.wait(40)
        process.start()
        proxy.target = process.port
        return proxy.url

    def set_clock(self, iso: str) -> None:
        clocked.write(self.folder / "clock", iso)

    def store(self, name: str, state: str) -> None:
        assert name == "counters"
        assert self._counters is not None
        if state == "down":
            self._counters.kill()
        else:
            assert self._counters.start()

    def _running(self) -> tuple[Process, KeyProxy]:
        assert self._process is not None
        assert self._proxy is not None
        return self._process, self._proxy

    def _add_key(self, key: str | Json, team: str, role: str) -> None:
        assert self._process is not None
        text, expires = (key, None) if isinstance(key, str) else (key["key"], _us(key["expires"]))
        now_us = time.time_ns() // 1_000
        past = expires is not None and expires <= now_us  # a key that has expired was good once
        fields = {} if expires is None else {"expires_us": now_us + 300_000 if past else expires}
        made = self._process.make_key(team, role=role, **fields)
        self._keys[text], self._ids[made["id"]] = made["key"], text
        if past:
            time.sleep(0.35)

    # our files

    def _write(self, config: Json) -> None:
        (self.folder / "teams").mkdir(exist_ok=True)
        self._write_prices(config)
        settings = config.get("settings", {})
        ours: Json = {"policies": "teams", "prices": ["prices.toml"], "data": "data"}
        ours |= {SETTINGS.get(name, name): value for name, value in settings.items()
                 if name not in BACKEND_SETTINGS and name not in ELSEWHERE and value is not None}  # fmt: skip
        most = max((len(route["backends"]) for route in config.get("routes", ())), default=1)
        ours["max_attempts"] = max(1, min(most, 5)) if settings.get("fallback") else 1
        backends = [self._backend(backend, config) for backend in config["backends"]]
        known = {"prices", "backends", "routes", "teams", "aliases", "admin_keys", "settings"}
        ours |= {name: value for name, value in config.items() if name not in known}
        twice = ", ".join(f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in backends)    # a name may stand there twice
        (self.folder / "tollway.yaml").write_text(f'{json.dumps(ours, indent=1)[:-2]},\n "backends": {{{twice}}}\n}}')
        self._write_teams(config)

    def _backend(self, backend: Json, config: Json) -> tuple[str, Json]:
        settings, name = config.get("settings", {}), backend["name"]
        fields: Json = {
            "dialect": backend["protocol"], "url": f"{backend['base_url']}/v1", "provider": "cases",
            "models": {**_aliases(backend, config), **backend["models"]}, "lanes": {backend["class"]: _first_guesses(name, config)},
        }  # fmt: skip
        if backend["protocol"] == "openai":
            fields["speaks"] = ["chat", "responses", "embeddings"]
        fields |= {ours: settings[theirs] for theirs, ours in BACKEND_SETTINGS.items() if theirs in settings}
        credential = backend.get("credential")
        if isinstance(credential, str):
            (self.folder / f"{name}.key").write_text(credential)
            fields["key"] = f"file:{name}.key"
        elif credential is not None:
            fields["key"] = f"env:{credential['env']}"
        if backend.get("max_tool_name"):
            fields["max_tool_name"] = backend["max_tool_name"]
        if backend.get("supports_cache_ttl") is False:
            fields["cache_ttl"] = False
        known = {"name", "protocol", "class", "credential", "models", "base_url", "supports_cache_ttl", "max_tool_name"}
        return name, fields | {key: value for key, value in backend.items() if key not in known}

    def _write_prices(self, config: Json) -> None:
        (self.folder / "prices.toml").write_text(_prices(config.get("prices", {})))

    def _write_teams(self, config: Json) -> None:
        ids: list[str] = []
        for team in config["teams"]:
            file = f"{team['id']}.yaml".replace("/", "_") if team["id"] not in ids else f"again-{len(ids)}.yaml"
            ids.append(team["id"])
            (self.folder / "teams" / file).write_text(json.dumps(_policy(team, config), indent=1))

    def reload(self, config: Json) -> None:
        self._write_prices(config)
        self._write_teams(config)
        time.sleep(2.0)

    def reload_text(self, text: str) -> None:
        next((self.folder / "teams").iterdir()).write_text(text)
        time.sleep(1.5)

    # what is asked

    def ledger(self) -> list[Json]:
        return [self._row(entry) for entry in self._read().entries()]

    def _read(self) -> Reports:
        if self._reports is None:
            self._reports = connect(f"sqlite:///{self.folder}/data/tollway.db")
        return self._reports

    def _row(self, entry: Entry) -> Json:
        tokens = entry.tokens
        long = tokens.cache_write.get("1h", 0) + tokens.cache_write.get("12h", 0)
        return {
            "team": entry.team, "key": self._ids.get(entry.key_id, entry.key_id), "model": entry.model,
            "served_model": entry.served_model or entry.upstream_model, "backend": entry.backend, "status": STATUSES[entry.status],
            "usage": {
                "input_uncached": tokens.uncached or 0, "input_cached": tokens.cache_read or 0,
                "cache_write_5m": tokens.written - long, "cache_write_1h": long,
                "output": tokens.output or 0, "output_reasoning": tokens.reasoning or 0,
            },
            "usage_source": SOURCES[entry.tokens_from], "cost_usd": usd(entry.cost_nanos), "service_tier": entry.served_tier,
            "request_id": entry.call_id, "attempt": entry.attempt, "at": datetime.fromtimestamp(entry.at_us / 1e6, UTC).isoformat(),
        }  # fmt: skip

    def budget(self, team: str, name: str) -> Json:
        process, _ = self._running()

        def row() -> Json | None:
            rows = process.ask("GET", "/tollway/admin/budgets").json()
            found = [row for row in rows if row["name"] == name and row["team"] == team]
            return found[0] if found and not found[0]["held_nanos"] else None

        try:
            last: Json = until(row, "the budget's holds to be settled", 3)
        except AssertionError:
            return {"spent_usd": "0", "reserved_usd": "0"}
        return {"spent_usd": usd(last["spent_nanos"]), "reserved_usd": usd(last["held_nanos"])}

    def query(self, query: Json, key: str) -> tuple[bool, Any]:
        process, _ = self._running()
        assert query["name"] == "spend"
        by = "" if query["group_by"] == "none" else query["group_by"]
        words = {"report": "spend", "by": by, "since": query["from"], "until": query["to"], "tz": query["timezone"]}
        words |= {"team": query["team"]} if query.get("team") else {}
        answer = process.ask("GET", "/tollway/usage", self._keys.get(key, key), params=words)
        if answer.status_code in (401, 403, 404):
            return False, None
        assert answer.status_code == 200, answer.text
        sums = answer.json()
        rows = [{"key": self._ids.get(row[by], row[by]), **_brief(row)} for row in sums["rows"]] if by else []
        return True, {"rows": sorted(rows, key=lambda row: row["key"]), "total": _brief(sums["total"])}

    def logs(self) -> str:
        """With the gateway's own keys named as the case does, so that a leak of one shows as a leak of the other."""
        process, _ = self._running()
        text = process.text()
        for theirs, ours in self._keys.items():
            text = text.replace(ours, theirs)
        return text

    # a past

    def seed(self, rows: list[Json]) -> None:
        self._insert([self._entry(n, row) for n, row in enumerate(rows)])

    def seed_pattern(self, step: Json) -> None:
        start, teams = datetime.fromisoformat(step["start"]), step["teams"]
        self._insert([
            self._entry(n, {
                "at": (start + timedelta(seconds=n * step["every_seconds"])).isoformat(), "team": teams[n % len(teams)],
                "model": step["model"], "backend": step["backend"], "status": "ok", "cost_usd": step["cost_usd"],
            })
            for n in range(step["count"])
        ])  # fmt: skip

    def _entry(self, number: int, row: Json) -> Entry:
        usage, ours = row.get("usage", {}), {theirs: key_id for key_id, theirs in self._ids.items()}
        request, attempt = row.get("request_id", f"seed-{number}"), row.get("attempt", 1)
        status = next(mine for mine, theirs in STATUSES.items() if theirs == row["status"])
        tokens = TokenUsage(
            uncached=usage.get("input_uncached", 0), cache_read=usage.get("input_cached", 0),
            cache_write={"5m": usage.get("cache_write_5m", 0), "1h": usage.get("cache_write_1h", 0)},
            output=usage.get("output", 0), reasoning=usage.get("output_reasoning", 0),
        )  # fmt: skip
        entry = Entry(
            id=f"{request}-{attempt}", call_id=request, attempt=attempt, at_us=_us(row["at"]), team=row["team"],
            key_id=ours.get(row.get("key", ""), row.get("key", "")), dialect="openai_chat", stream=False, model=row["model"],
            upstream_model=row["model"], backend=row["backend"], provider="cases", lane="standard", latency_class="standard",
            policy_version="seed", reason="seed", status="ok", tokens=tokens, tokens_from="provider",
            cost_nanos=None if row["cost_usd"] is None else nanos(row["cost_usd"]),
        )  # fmt: skip
        return replace(entry, status=status)  # type: ignore[arg-type]

    def _insert(self, entries: list[Entry]) -> None:
        """While the gateway is down: its database has one writer."""
        process, proxy = self._running()
        process.terminate()
        process.wait(40)

        async def insert() -> None:
            store = Store(f"sqlite:///{self.folder}/data/tollway.db")
            async with store.begin() as connection:
                await insert_entries(connection, entries)
            await store.close()

        asyncio.run(insert())
        process.start()
        proxy.target = process.port


class Forking(Adapter):
    """The same with processes that start in no time: for the test suite."""

    fork = True


def _refuse_what_we_cannot_say(config: Json) -> None:
    """Our keys are made, never typed, and lanes are found, not routed to: neither mistake can be made in our files."""
    owners: dict[str, str] = {}
    for team in config["teams"]:
        for key in team.get("keys", ()):
            text = key if isinstance(key, str) else key["key"]
            if owners.setdefault(text, team["id"]) != team["id"]:
                raise StartFailed(f"teams: a key of {team['id']} is a key of {owners[text]} too")
    backends = [backend["name"] for backend in config["backends"]]
    for place, route in enumerate(config.get("routes", ())):
        for name in route["backends"]:
            if name not in backends:
                raise StartFailed(f"routes[{place}].backends: no backend is called {name}")


def _policy(team: Json, config: Json) -> Json:
    """A team's file. The order of a route's backends is the order of their first guesses; waiting is made dear, so it holds.
    Where turns are to stay together only the cache counts, and figures are learnt only where the case wants it."""
    settings = config.get("settings", {})
    strategies = {route.get("strategy") for route in config.get("routes", ())}
    ours: Json = {
        "team": team["id"],
        "explore": 0.05 if "latency" in strategies else 0,
        "normalize": {"level": "equivalent" if settings.get("normalise") else "off", "hold_out": 0},
        "models": {"aliases": {alias: model for alias, model in config.get("aliases", {}).items() if model in team.get("models", [model])}},
        "classes": {"standard": {"value_usd_per_hour": 0 if strategies & _EVEN else 1_000_000, "lanes": ["standard", "fast"]}},
    }  # fmt: skip
    if "models" in team:
        ours["models"]["allow"] = team["models"]
    if "backends" in team:
        ours["backends"] = {"allow": team["backends"]}
    if "budgets" in team:
        ours["budgets"] = team["budgets"]
    return ours | {name: value for name, value in team.items() if name not in ("id", "keys", "models", "backends", "budgets")}


def _aliases(backend: Json, config: Json) -> Json:
    """Names that are known to all teams, allowed or not, are further names at the backend; a team's file has its own aliases."""
    models = backend["models"]
    return {alias: models[model] for alias, model in config.get("aliases", {}).items() if model in models}


def _first_guesses(backend: str, config: Json) -> Json:
    """Alike where the case wants the gateway to find out, or not to care; else so that nothing that is learnt of a later
    backend makes it look quicker than one that stands before it."""
    if any(route.get("strategy") in ("latency", *_EVEN) and backend in route["backends"] for route in config.get("routes", ())):
        return {"first_token_ms": 500.0}
    places = [route["backends"].index(backend) for route in config.get("routes", ()) if backend in route["backends"]]
    place = min(max(places, default=0), 2)
    return {"first_token_ms": (1.0, 100_000.0, 3_000_000.0)[place], "ms_per_output_token": (0.001, 20.0, 20.0)[place]}


def _prices(prices: Mapping[str, Json]) -> str:
    rows = [row for model, price in prices.items() for row in _rows(model, price)]
    lines = ["{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items()) + "}," for row in rows]
    return '[cases]\nsource = "case"\nchecked_on = 2026-01-01\nrows = [\n' + "\n".join(lines) + "\n]\n"


def _rows(model: str, price: Json) -> Iterator[Json]:
    fees = {name: str(Decimal(fee) * 1000) for name, fee in price.get("per_call", {}).items()}
    base = {"model": model, **_rates(price), **fees}
    yield base
    if "long_context" in price:
        yield {**base, "over": price["long_context"]["over_input_tokens"], **_rates(price["long_context"]["rates"])}
    for tier, rates in price.get("service_tiers", {}).items():
        yield {"model": model, "tier": tier, **_rates(rates), **fees}


def _rates(price: Json) -> Json:
    """Words that are not known here travel on, to be refused."""
    return {RATES.get(name, name): rate for name, rate in price.items() if name not in ("long_context", "service_tiers", "per_call")}


def _brief(row: Json) -> Json:
    return {"cost_usd": row["cost_usd"] or "0", "requests": row["calls"], "attempts": row["attempts"]}


def _us(iso: str) -> int:
    return int(datetime.fromisoformat(re.sub("Z$", "+00:00", iso)).timestamp() * 1_000_000)
