"""Secrets of a first start: the pepper of all keys, an admin key and a demo key, in files that only the owner reads."""
from __future__ import annotations

import os
import secrets
from pathlib import Path

from sqlalchemy.exc import IntegrityError

from gateway.access.keys import KeyRecord, KeyRing, key_id, mint
from gateway.core import clock
from gateway.key_table import KeyTable
from gateway.settings import Settings


async def first_keys(settings: Settings, table: KeyTable, ring: KeyRing, demo_team: str | None) -> None:
    """The admin key and, if asked for, a demo key: made at the first start, kept in DATA/keys. Raises `ValueError` for a key
    that is none of ours, or not the one in the database."""
    folder = settings.data / "keys"
    if settings.admin_key is not None:
        await _ensure(table, ring, settings.admin_key.reveal(), team="operator", role="admin", name="from settings")
    else:
        await _ensure(table, ring, _key_file(folder / "admin"), team="operator", role="admin", name="first admin key")
    if demo_team is not None:
        await _ensure(table, ring, _key_file(folder / "demo"), team=demo_team, role="member", name="demo key")


async def _ensure(table: KeyTable, ring: KeyRing, key: str, *, team: str, role: str, name: str) -> None:
    known = key_id(key)
    if known is None:
        raise ValueError(f"the {name} does not look like a Tollway key (tw_...); remove its file to have a new one made")
    if (there := ring.record(known)) is not None:
        if there.digest != ring.digest(key):
            raise ValueError(f"the {name} is not the one in the database: replicas that share it need one `key_pepper`")
        return
    now_us = clock.now_us()
    record = KeyRecord(id=known, team=team, digest=ring.digest(key), name=name, role=role, created_us=now_us)
    try:
        ring.put(await table.insert(record, actor="start"))
    except IntegrityError:                      # another replica was first
        ring.put(*await table.load())


def pepper_of(settings: Settings) -> bytes:
    """The one in the settings, or one of this data folder's own, made at the first start."""
    settings.data.mkdir(parents=True, exist_ok=True)
    own = _secret_file(settings.data / "keys" / "pepper") if settings.key_pepper is None else settings.key_pepper.reveal()
    return own.encode()


def _key_file(path: Path) -> str:
    if not path.exists():
        _write_secret(path, mint()[1].reveal())
    return path.read_text(encoding="ascii").strip()


def _secret_file(path: Path) -> str:
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(48))
    return path.read_text(encoding="ascii").strip()


def _write_secret(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text + "\n")
