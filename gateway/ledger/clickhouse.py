"""The ledger's copy in ClickHouse, for analyses past what the database likes. Off unless `clickhouse_url` is set, and never on
a call's way.

Entries go from the database, which has them for good, in the order in which they came, thousands in one insert. How far the
copy is, it says itself (the greatest number in it), so nothing is remembered here: an insert whose answer was lost is either
seen in that number or made again, and the table keeps one row for each entry (ReplacingMergeTree; read it with FINAL). Only
what the roll-ups have passed is sent: before that, entries with smaller numbers may still come in.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import orjson
from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Integer, select
from sqlalchemy.types import TypeEngine

from gateway.ledger.rollup_tables import STATE, seq
from gateway.ledger.sql import Store
from gateway.ledger.tables import LEDGER

BATCH = 5_000
TIMEOUT_S = 30.0
TABLE = "tollway_ledger"
_KINDS: Sequence[tuple[type[TypeEngine[Any]], str]] = (
    (Boolean, "UInt8"), (BigInteger, "Int64"), (Integer, "Int64"), (Float, "Float64"),
)  # fmt: skip
_JSON = tuple(column.name for column in LEDGER.c if isinstance(column.type, JSON))


class ClickHouse:
    """Keeps the copy. `step` is a job for `Upkeep`; `close` at the end."""

    def __init__(self, store: Store, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`url`: http(s)://USER:PASSWORD@HOST:8123/DATABASE."""
        place = httpx.URL(url)
        headers = {"x-clickhouse-user": place.username or "default", "x-clickhouse-key": place.password}
        self._store = store
        self._client = httpx.AsyncClient(
            base_url=place.copy_with(username=None, password=None, path="/"), headers=headers, timeout=TIMEOUT_S,
            params={"database": place.path.strip("/") or "default"}, transport=transport, trust_env=False,
        )  # fmt: skip
        self._made = False

    async def step(self) -> None:
        """Sends what is missing. Raises `OSError` where ClickHouse does not take it, SQLAlchemy's errors where the database
        cannot be read."""
        if not self._made:
            await self._ask(definition())
            self._made = True
        sent = int(await self._ask(f"SELECT max(seq) FROM {TABLE} FORMAT TabSeparated"))
        while rows := await self._after(sent):
            await self._ask(f"INSERT INTO {TABLE} FORMAT JSONEachRow", b"".join(lines(rows)))
            sent = int(rows[-1]["seq"])

    async def close(self) -> None:
        await self._client.aclose()

    async def _after(self, number: int) -> Sequence[Mapping[str, Any]]:
        place = seq(self._store.engine.dialect.name)
        passed = select(STATE.c.seq).scalar_subquery()
        rows = select(place.label("seq"), LEDGER).where(place > number, place <= passed).order_by(place).limit(BATCH)
        async with self._store.begin() as connection:
            return [dict(row) for row in (await connection.execute(rows)).mappings()]

    async def _ask(self, query: str, data: bytes = b"") -> str:
        try:
            answer = await self._client.post("/", params={"query": query}, content=data)
        except httpx.HTTPError as error:
            raise OSError(f"ClickHouse does not answer: {error}") from error
        if answer.status_code != 200:
            raise OSError(f"ClickHouse answers {answer.status_code}: {answer.text[:300]}")
        return answer.text


def definition() -> str:
    """The table, with a column for each of the ledger's."""
    columns = ", ".join(f"`{column.name}` {_kind(column)}" for column in LEDGER.c)
    return f"CREATE TABLE IF NOT EXISTS {TABLE} (seq Int64, {columns}) ENGINE = ReplacingMergeTree ORDER BY (team, at_us, id)"


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Each row as JSON; what has no fixed shape as text in it."""
    for row in rows:
        texts = {name: orjson.dumps(row[name]).decode() for name in _JSON if row[name] is not None}
        yield orjson.dumps({**row, **texts}, option=orjson.OPT_APPEND_NEWLINE)


def _kind(column: Column[Any]) -> str:
    kind = next((name for known, name in _KINDS if isinstance(column.type, known)), "String")
    return f"Nullable({kind})" if column.nullable else kind
