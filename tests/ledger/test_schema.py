"""Migrations: a migrated database is the same as a new one, up and down, with its rows; a newer one is refused."""
from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Connection, insert, inspect, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.ledger.schema import FIRST, MIGRATIONS, REVISION, SchemaError, downgrade, revision, upgrade
from gateway.ledger.sql import Store, async_url
from gateway.ledger.tables import AUDIT, COLUMNS, KEYS, LEDGER, entry_of, values_of
from tests.ledger.generate import entry

PREVIOUS = Path(__file__).parent / "previous"
"""The tables as the first release made them, statement by statement."""
NEWER = frozenset({"held_nanos", "session"})
"""Columns of entries that came after it."""


async def run(url: str, *statements: str) -> None:
    engine = create_async_engine(async_url(url))
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()


async def insert_as_before(store: Store, id: str, *before: str) -> None:
    """An entry as the first release wrote it, which knew fewer columns."""
    row = {name: value for name, value in zip(COLUMNS, values_of(entry(id=id)), strict=True) if name not in NEWER}
    row |= {name: json.loads(row[name]) for name in row if isinstance(LEDGER.c[name].type, JSON) and row[name] is not None}
    async with store.begin() as connection:
        for statement in before:
            await connection.execute(text(statement))
        await connection.execute(insert(LEDGER).values(row))


async def shape(url: str) -> dict[str, Any]:
    """Tables, columns and indexes, without their order."""

    def look(connection: Connection) -> dict[str, Any]:
        there = inspect(connection)
        return {
            name: (
                {c["name"]: (str(c["type"]), c["nullable"]) for c in there.get_columns(name)},
                sorted((str(i["name"]), tuple(i["column_names"])) for i in there.get_indexes(name) if not i.get("duplicates_constraint")),
                sorted(tuple(u["column_names"]) for u in there.get_unique_constraints(name)),
                there.get_pk_constraint(name)["constrained_columns"],
            )
            for name in there.get_table_names()
            if name != "alembic_version"
        }

    engine = create_async_engine(async_url(url))
    async with engine.connect() as connection:
        found = await connection.run_sync(look)
    await engine.dispose()
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/t.db"
        return
    server = request.getfixturevalue("postgres_url")
    name = "schema_" + "".join(c for c in tmp_path.name if c.isalnum()).lower()
    engine = create_async_engine(async_url(server), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f'CREATE DATABASE "{name}"'))
    yield server.replace("/postgres?", f"/{name}?")
    async with engine.connect() as connection:
        await connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
    await engine.dispose()


@pytest.fixture
async def old(url: str) -> str:
    """A database of the release before, with a key, an audit row and an entry in it."""
    script = (PREVIOUS / f"{url.partition(':')[0]}.sql").read_text()
    await run(url, *(statement for statement in script.split(";\n") if statement.strip()))
    await run(
        url,
        "INSERT INTO keys (id, digest, team, name, role, created_us) VALUES ('k', 'd', 'search', 'n', 'lead', 5)",
        "INSERT INTO schema_version VALUES (1, 5)",
        "INSERT INTO audit VALUES ('a', 5, 'cli', 'key.create', 'k', '{\"team\": \"search\"}')",
    )
    store = Store(url)
    await insert_as_before(store, "a-1")
    await store.close()
    return url


async def test_a_new_and_a_migrated_database_are_the_same(url: str, old: str, tmp_path: Path) -> None:
    """On both kinds; so a table or a column without its migration does not get through."""
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    assert await revision(url) == FIRST
    assert await upgrade(url)
    assert await revision(url) == REVISION
    if url.startswith("sqlite"):
        assert await upgrade(fresh)
        assert await shape(url) == await shape(fresh)
    else:
        migrated = await shape(url)
        tables = [f'"{name}"' for name in (*migrated, "alembic_version")]
        await run(url, f"DROP TABLE {', '.join(tables)}")
        assert await upgrade(url)
        assert await shape(url) == migrated


async def test_up_and_down_and_up_again_keeps_what_was_there(old: str) -> None:
    """Keys, audit and entries come through; back at the first revision the tables are what they were."""
    before = await shape(old)
    await upgrade(old)
    store = Store(old)
    async with store.begin() as connection:
        await connection.execute(insert(KEYS).values(id="k2", digest="d2", team="t", name="", role="member", created_us=6, changed_us=6))
    await store.close()
    await downgrade(old, FIRST)
    assert await shape(old) == before
    assert await revision(old) == FIRST
    await upgrade(old)
    store = Store(old)
    async with store.begin() as connection:
        keys = (await connection.execute(select(KEYS).order_by(KEYS.c.id))).mappings().all()
        (audit,) = (await connection.execute(select(AUDIT))).mappings().all()
        (kept,) = (await connection.execute(select(LEDGER))).mappings().all()
    await store.close()
    assert [(key["id"], key["role"], key["changed_us"]) for key in keys] == [("k", "lead", 0), ("k2", "member", 0)]
    assert audit["detail"] == {"team": "search"}
    assert entry_of(kept) == entry(id="a-1")


async def test_the_release_before_goes_on_writing(old: str) -> None:
    """Replicas are replaced one after the other: what the old program inserts still fits."""
    await upgrade(old)
    await run(old, "INSERT INTO keys (id, digest, team, name, role, created_us) VALUES ('k3', 'd3', 'search', 'n', 'member', 7)")


async def test_starts_at_the_same_moment_do_not_meet(url: str) -> None:
    """Four replicas on an empty database, then four on an old one: each upgrade ends well, the schema is there once."""
    await asyncio.gather(*(upgrade(url) for _ in range(4)))
    await downgrade(url, FIRST)
    await asyncio.gather(*(upgrade(url) for _ in range(4)))
    assert await revision(url) == REVISION


async def test_a_second_upgrade_does_nothing(url: str) -> None:
    assert await upgrade(url)
    assert not await upgrade(url)


async def test_a_newer_database_is_refused(url: str) -> None:
    """With what to do."""
    await upgrade(url)
    await run(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match=r"schema 9999.*use a newer"):
        await upgrade(url)


async def test_migration_by_hand_is_asked_for(old: str) -> None:
    """`database_upgrade: command`: the start says what to run and changes nothing."""
    with pytest.raises(SchemaError, match="tollway db upgrade"):
        await upgrade(old, by_hand=True)
    assert await revision(old) == FIRST


def test_every_migration_is_in_one_line() -> None:
    """Numbered without gaps, each after the one before, the newest known to the tables."""
    names = sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
    assert names == [f"{n:04d}" for n in range(1, len(names) + 1)]
    assert names[-1] == REVISION
    for path in sorted((MIGRATIONS / "versions").glob("[0-9]*.py")):
        assert f'revision, down_revision, branch_labels, depends_on = "{path.name[:4]}"' in path.read_text()


def test_a_start_on_a_current_database_does_not_load_alembic(tmp_path: Path) -> None:
    """Half of the time a start takes would go there."""
    code = """
import asyncio, sys
from gateway.ledger.schema import upgrade
for _ in range(2):
    asyncio.run(upgrade(sys.argv[1]))
print("alembic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, f"sqlite:///{tmp_path}/t.db"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def entries_copied(url: str, count: int) -> None:
    """Fills the ledger with copies of its entry `a-1`."""
    names = [c.name for c in LEDGER.c if c.name not in NEWER]
    copied = ", ".join({"id": "'old-' || n", "at_us": "at_us + n % 997"}.get(name, name) for name in names)
    await run(url, f"INSERT INTO ledger ({', '.join(names)}) SELECT {copied} FROM ledger, generate_series(1, {count}) AS n WHERE id = 'a-1'")


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_big_ledger_is_migrated_while_it_is_written_to(old: str) -> None:
    """Up and down: no write fails, none waits long for a lock; entries are numbered by time, new ones after old ones."""
    await entries_copied(old, 40_000)
    store, over, written = Store(old), asyncio.Event(), list[str]()

    async def write() -> None:
        """As the release before does, which knows nothing of the number."""
        while not over.is_set():
            await insert_as_before(store, f"new-{len(written)}", "SET LOCAL lock_timeout = '2s'")
            written.append(f"new-{len(written)}")
            await asyncio.sleep(0.002)

    writing = asyncio.ensure_future(write())
    await upgrade(old)
    up = len(written)
    async with store.begin() as connection:
        rows = (await connection.execute(text("SELECT id, seq, at_us FROM ledger ORDER BY seq"))).all()
    await downgrade(old, FIRST)
    await upgrade(old)
    over.set()
    await writing
    async with store.begin() as connection:
        again = (await connection.execute(text("SELECT count(*) AS n, count(seq) AS numbered FROM ledger"))).one()
    await store.close()
    olds = [row for row in rows if not row.id.startswith("new-")]
    assert [row.at_us for row in olds] == sorted(row.at_us for row in olds)
    assert len({row.seq for row in rows}) == len(rows)
    late = [row.id for row in rows if row.seq >= 1_000_000_000_000]
    assert set(late) <= set(written)
    assert late == sorted(late, key=lambda id: int(id.removeprefix("new-")))
    assert again == (40_001 + len(written), 40_001 + len(written))
    assert up > 5


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_migration_that_broke_off_is_taken_up_again(old: str) -> None:
    """With the column, the default and half of the numbers there."""
    await entries_copied(old, 1_000)
    await run(
        old, "ALTER TABLE ledger ADD COLUMN seq BIGINT", "CREATE SEQUENCE ledger_new_seq START 1000000000000",
        "ALTER TABLE ledger ALTER COLUMN seq SET DEFAULT nextval('ledger_new_seq')",
        "UPDATE ledger SET seq = n FROM (SELECT id, row_number() OVER (ORDER BY at_us, id) AS n FROM ledger) AS found "
        "WHERE found.id = ledger.id AND n <= 400",
    )
    await upgrade(old)
    store = Store(old)
    async with store.begin() as connection:
        numbers = (await connection.execute(text("SELECT seq FROM ledger ORDER BY at_us, id"))).scalars().all()
    await store.close()
    assert numbers == list(range(1, 1_002))
