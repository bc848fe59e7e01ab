"""Keys used lately, on disk: no more of them than may go on, no secrets, and what other workers saw stays."""
from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.access.keys import SEEN_US, KeyRecord, KeyRing, key_id, mint
from gateway.access.origins import Origin
from gateway.core.errors import Overloaded, Unauthorized
from gateway.remembered import Remembered

PEPPER = b"pepper"
HERE = Origin("127.0.0.1")


def keys(*roles: str) -> tuple[KeyRing, list[str]]:
    ring, texts = KeyRing(PEPPER), []
    for role in roles:
        id, secret = mint()
        texts.append(secret.reveal())
        ring.put(KeyRecord(id=id, team="alpha", role=role, digest=ring.digest(texts[-1])))
    return ring, texts


def now_us() -> int:
    return time.time_ns() // 1_000


def test_what_was_used_lately_goes_on_after_a_start(tmp_path: Path) -> None:
    """The others get 503, which says that it is not their fault; a key that is none gets 401."""
    ring, (used, idle) = keys("lead", "member")
    ring.tenant(used, now_us(), HERE)
    file = tmp_path / "keys" / "known.json"
    Remembered(file).save(ring)
    text = file.read_text()
    assert used not in text
    assert (key_id(idle) or "") not in text
    assert file.stat().st_mode & 0o777 == 0o600

    later = KeyRing(PEPPER)
    later.stale = True
    assert Remembered(file).useful
    assert Remembered(file).restore(later) == 1
    assert later.tenant(used, now_us(), HERE).lead
    with pytest.raises(Overloaded):
        later.tenant(idle, now_us(), HERE)
    with pytest.raises(Unauthorized):
        later.tenant("tw_nonsense", now_us(), HERE)


def test_a_revocation_is_remembered_at_once(tmp_path: Path) -> None:
    ring, (used,) = keys("member")
    ring.tenant(used, now_us(), HERE)
    remembered = Remembered(tmp_path / "known.json")
    remembered.save(ring)
    (record,) = ring.records()
    ring.put(KeyRecord(id=record.id, team="alpha", digest=record.digest, revoked_us=now_us() - 1))
    remembered.save(ring)
    later = KeyRing(PEPPER)
    Remembered(tmp_path / "known.json").restore(later)
    with pytest.raises(Unauthorized, match="revoked"):
        later.tenant(used, now_us(), HERE)


def test_workers_add_what_they_saw(tmp_path: Path) -> None:
    """And what nobody used for a quarter of an hour is forgotten."""
    (one, (first,)), (two, (second,)), (three, (old,)) = keys("member"), keys("member"), keys("member")
    one.tenant(first, now_us(), HERE)
    two.tenant(second, now_us(), HERE)
    three.tenant(old, now_us() - SEEN_US - 1_000_000, HERE)
    for ring in (three, one, two):
        Remembered(tmp_path / "known.json").save(ring)
    later = KeyRing(PEPPER)
    assert Remembered(tmp_path / "known.json").restore(later) == 2


@pytest.mark.parametrize("content", [b"", b"{", b'{"records": 1}', b"\xff"])
def test_a_file_that_is_none_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "known.json").write_bytes(content)
    assert not Remembered(tmp_path / "known.json").useful
