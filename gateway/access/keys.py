"""Virtual keys: made once, shown once, kept as a keyed digest, looked up in memory.

A key is `tw_ID_SECRETCHECK`: the id names it in reports and logs, the secret has 256 bits, the check (six digits of a
CRC) lets scanners and typos be told from guesses before anything is looked up. Only HMAC-SHA-256(pepper, key) is
stored, so a stolen table opens nothing.
"""
from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.access.origins import Network, Origin, Origins, lies_in, networks
from gateway.core.call import Tenant
from gateway.core.errors import Overloaded, Unauthorized
from gateway.core.secret import Secret

SEEN_US = 15 * 60 * 1_000_000
"""How lately a key must have been used to go on while the database is away, microseconds."""
_FORM = re.compile(r"tw_([a-z2-7]{10})_([A-Za-z0-9_-]{43})([0-9a-f]{6})", re.ASCII)
_CHECKED_MOST = 50_000
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_TOLD_EVERY_S = 60.0
"""How often the log tells that one key is shown from a wrong place."""
_log = logging.getLogger("tollway.keys")
_WRONG = "the API key is missing or not valid; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """What is kept of a key. `digest` is hex; times are microseconds since the epoch."""

    id: str
    team: str
    digest: str
    project: str | None = None
    name: str = ""
    role: str = "member"
    created_us: int = 0
    expires_us: int | None = None
    revoked_us: int | None = None
    user_id: str | None = None
    budget: Mapping[str, Any] | None = None
    """`limit_nanos`, `window` and `timezone` of what this key may spend."""
    limits: Mapping[str, Any] | None = None
    """`models`: patterns of those it may name; `addresses`: networks that it may be shown from. None in a list: all."""
    changed_us: int = 0

    def ended(self, now_us: int) -> bool:
        """Whether it was revoked or has expired."""
        return self.revoked_us is not None or (self.expires_us is not None and self.expires_us <= now_us)


def mint() -> tuple[str, Secret]:
    """A new key's id and its whole text."""
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(10))
    body = f"tw_{key_id}_{secrets.token_urlsafe(32)}"
    return key_id, Secret(body + _check(body))


def digest(key: str, pepper: bytes) -> str:
    return hmac.new(pepper, key.encode("utf-8"), hashlib.sha256).hexdigest()


def key_id(presented: str) -> str | None:
    """The id of a key whose form and check are right, else None; nothing is looked up for a text that is none."""
    match = _FORM.fullmatch(presented)
    if match is None or _check(presented[:-6]) != match[3]:
        return None
    return match[1]


def mark_of(presented: str | None) -> bytes:
    """A plain digest, by which a key that was found right is known again."""
    return hashlib.sha256((presented or "").encode("utf-8", "replace")).digest()


def _check(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii')) & 0xFFFFFF:06x}"


class KeyRing:
    """All keys in memory; `tenant` is a digest and a dictionary look-up.

    `stale` is set while the database that would tell of revocations is away: then only keys that were used in the last
    quarter of an hour go on.
    """

    def __init__(self, pepper: bytes, records: Iterable[KeyRecord] = (), origins: Origins | None = None) -> None:
        self.stale = False
        self.origins = origins or Origins()
        self.changes = 0
        """Counts records that were new or other than before."""
        self._pepper = pepper
        self._records: dict[str, KeyRecord] = {}
        self._tenants: dict[str, Tenant] = {}
        self._places: dict[str, tuple[Network, ...]] = {}
        """Of keys that may be shown from some networks only."""
        self._told_s: dict[str, float] = {}
        self._seen_us: dict[str, int] = {}
        self._checked: dict[bytes, KeyRecord] = {}
        """Plain digests of keys that were found right since the content last changed: the HMAC is not computed each time."""
        self.put(*records)

    def put(self, *records: KeyRecord) -> None:
        for record in records:
            if self._records.get(record.id) != record:
                self._records[record.id] = record
                self._tenants[record.id] = _tenant(record)
                if places := networks((record.limits or {}).get("addresses", ())):
                    self._places[record.id] = places
                else:
                    self._places.pop(record.id, None)
                self._checked.clear()
                self.changes += 1

    def recent(self, now_us: int) -> dict[str, int]:
        """Ids of the keys used within `SEEN_US`, and when they were last."""
        return {id: at_us for id, at_us in list(self._seen_us.items()) if now_us - at_us <= SEEN_US}

    def was_seen(self, seen_us: Mapping[str, int]) -> None:
        """Another process, or an earlier life of this one, saw these keys used."""
        for id, at_us in seen_us.items():
            self._seen_us[id] = max(at_us, self._seen_us.get(id, 0))

    def of_user(self, team: str, user: str | None) -> list[str]:
        """Ids of the keys that a team's user has, or had; None: of keys that are nobody's."""
        return [record.id for record in self._records.values() if record.team == team and record.user_id == user]

    def known(self, id: str) -> Tenant | None:
        """Whose key it is, or was."""
        return self._tenants.get(id)

    def records(self) -> list[KeyRecord]:
        return sorted(self._records.values(), key=lambda r: r.created_us)

    def record(self, key_id: str) -> KeyRecord | None:
        return self._records.get(key_id)

    def ended(self, key_id: str, now_us: int) -> bool:
        """Whether that key was revoked or has expired; False for what is no key of the ring."""
        record = self._records.get(key_id)
        return record is not None and record.ended(now_us)

    @property
    def newest_us(self) -> int:
        """When the latest change was made that is known here."""
        return max((record.changed_us for record in self._records.values()), default=0)

    def digest(self, key: str) -> str:
        return digest(key, self._pepper)

    def tenant(self, presented: str | None, now_us: int, origin: Origin, mark: bytes | None = None) -> Tenant:
        """Who a key belongs to; `mark`: its `mark_of`, where that is known. Raises `Unauthorized`, the same for every wrong
        key, saying more only of an expired one or one that is shown from a wrong place; and `Overloaded` where it cannot be
        known whether the key still holds."""
        mark = mark or mark_of(presented)
        record = self._checked.get(mark)
        if record is None:
            known = key_id(presented) if presented else None
            record = self._records.get(known) if known else None
            if record is None and known and self.stale:     # it may be new, or not used lately: nobody can say
                raise _unsure()
            if record is None or presented is None or not hmac.compare_digest(record.digest, self.digest(presented)):
                raise Unauthorized(_WRONG)
            if len(self._checked) >= _CHECKED_MOST:
                self._checked.clear()
            self._checked[mark] = record
        if record.revoked_us is not None:  # whatever its time: another machine may have said so
            raise Unauthorized("this API key was revoked; ask your team lead for a new one")
        if record.expires_us is not None and record.expires_us <= now_us:
            raise Unauthorized("this API key has expired; ask your team lead for a new one")
        if record.id in self._places and not self._may_come_from(record.id, origin):
            refusal = Unauthorized("this API key may not be used from this address; your team lead can name others for it")
            refusal.code = "address_not_allowed"
            raise refusal
        if self.stale and now_us - self._seen_us.get(record.id, 0) > SEEN_US:
            raise _unsure()
        self._seen_us[record.id] = now_us
        return self._tenants[record.id]

    def _may_come_from(self, key_id: str, origin: Origin) -> bool:
        """The log tells of it, for the key may be stolen."""
        address, now_s = self.origins.client(origin), time.monotonic()
        if address is not None and lies_in(address, self._places[key_id]):
            return True
        if now_s - self._told_s.get(key_id, -_TOLD_EVERY_S) >= _TOLD_EVERY_S:
            self._told_s[key_id] = now_s
            where = address or "an address that cannot be read"
            _log.warning("key %s was shown from %s, where it may not be used: is it stolen?", key_id, where)
        return False


def _unsure() -> Overloaded:
    refusal = Overloaded("the store of keys is away, and this key was not used lately", retry_after_s=5)
    refusal.code = "key_store_unavailable"
    return refusal


def _tenant(record: KeyRecord) -> Tenant:
    return Tenant(
        team=record.team,
        project=record.project,
        key_id=record.id,
        user=record.user_id,
        admin=record.role == "admin",
        lead=record.role == "lead",
        budget=None if record.budget is None else (
            record.budget["limit_nanos"], record.budget.get("window", "month"), record.budget.get("timezone", "UTC")
        ),
        models=tuple((record.limits or {}).get("models", ())),
    )
