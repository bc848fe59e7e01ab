"""Virtual keys: what a key looks like, what is kept of it, whom it opens for."""
from __future__ import annotations

import pytest

from gateway.access.keys import SEEN_US, KeyRecord, KeyRing, digest, key_id, mint
from gateway.access.origins import Origin
from gateway.core.errors import Overloaded, Unauthorized

PEPPER = b"pepper"
HERE = Origin("127.0.0.1")


def ring(**fields: object) -> tuple[KeyRing, str]:
    """A ring with one key, and the key."""
    known, secret = mint()
    record = KeyRecord(id=known, team="search", digest=digest(secret.reveal(), PEPPER), project="web", **fields)  # type: ignore[arg-type]
    return KeyRing(PEPPER, [record]), secret.reveal()


def test_keys_are_long_random_and_recognisable() -> None:
    """256 bits of secret behind a prefix and an id, a check at the end; no two are alike."""
    keys = {mint()[1].reveal() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("tw_") and len(key) == 63 and key_id(key) for key in keys)


def test_a_secret_does_not_print() -> None:
    known, secret = mint()
    assert secret.reveal() not in f"{secret} {secret!r} {[secret]}"
    assert known in secret.reveal()


@pytest.mark.parametrize("spoil", [
    lambda key: key[:-1] + ("0" if key[-1] != "0" else "1"),
    lambda key: key[:20] + ("a" if key[20] != "a" else "b") + key[21:],
    lambda key: key.upper(), lambda key: key + "\n", lambda key: " " + key, lambda key: key[:-1], lambda key: key + "0",
    lambda key: key.replace("tw_", "tw-"), lambda key: "", lambda key: "x" * 1_000_000, lambda key: key.replace(key[5], "é"),
])  # fmt: skip
def test_a_typo_is_told_from_a_key_before_anything_is_looked_up(spoil: object) -> None:
    keys, key = ring()
    wrong = spoil(key)  # type: ignore[operator]
    assert key_id(wrong) is None
    with pytest.raises(Unauthorized):
        keys.tenant(wrong, 0, HERE)


def test_a_good_key_names_its_tenant() -> None:
    """Team, project and key id; an admin's role counts, others do not."""
    keys, key = ring()
    tenant = keys.tenant(key, 0, HERE)
    assert (tenant.team, tenant.project, tenant.key_id, tenant.admin) == ("search", "web", key_id(key), False)
    keys, key = ring(role="admin")
    assert keys.tenant(key, 0, HERE).admin
    keys, key = ring(role="lead")
    assert not keys.tenant(key, 0, HERE).admin


def test_the_id_alone_opens_nothing() -> None:
    """Another key with a known id, check and all, is wrong; so is any key under another pepper."""
    import zlib

    keys, key = ring()
    body = key[:14] + "A" * 43
    forged = f"{body}{zlib.crc32(body.encode()) & 0xFFFFFF:06x}"
    assert key_id(forged) == key_id(key)
    with pytest.raises(Unauthorized):
        keys.tenant(forged, 0, HERE)
    with pytest.raises(Unauthorized):
        KeyRing(b"other", keys.records()).tenant(key, 0, HERE)


@pytest.mark.parametrize(("fields", "now_us", "word"), [
    ({"expires_us": 100}, 99, None), ({"expires_us": 100}, 100, "expired"), ({"revoked_us": 50}, 49, "revoked"),
    ({"revoked_us": 50}, 50, "revoked"), ({"revoked_us": 50, "expires_us": 40}, 60, "revoked"),
])  # fmt: skip
def test_a_key_ends_at_its_moment(fields: dict[str, int], now_us: int, word: str | None) -> None:
    """A revocation has none: the clock of the machine that it was said to may be ahead of this one."""
    keys, key = ring(**fields)
    if word is None:
        assert keys.tenant(key, now_us, HERE).team == "search"
    else:
        with pytest.raises(Unauthorized, match=word):
            keys.tenant(key, now_us, HERE)


def test_what_is_kept_is_a_keyed_digest() -> None:
    """A stolen table opens nothing."""
    keys, key = ring()
    (record,) = keys.records()
    assert key not in repr(record)
    assert record.digest == digest(key, PEPPER) != digest(key, b"other")


def test_put_replaces_and_adds() -> None:
    keys, key = ring()
    (record,) = keys.records()
    keys.put(KeyRecord(id=record.id, team="other", digest=record.digest))
    assert keys.tenant(key, 0, HERE).team == "other"
    assert len(keys.records()) == 1


def test_while_the_database_is_away_keys_used_lately_go_on() -> None:
    """A key that nobody used for a quarter of an hour may have been revoked meanwhile."""
    keys, key = ring()
    keys.tenant(key, 1, HERE)
    keys.stale = True
    assert keys.tenant(key, SEEN_US, HERE).team == "search"
    assert keys.tenant(key, 2 * SEEN_US - 1, HERE).team == "search"
    with pytest.raises(Overloaded) as refused:
        keys.tenant(key, 4 * SEEN_US, HERE)
    assert refused.value.code == "key_store_unavailable"
    keys.stale = False
    assert keys.tenant(key, 4 * SEEN_US, HERE).team == "search"


def test_a_lead_and_narrowed_models_are_told() -> None:
    keys, key = ring(role="lead", user_id="u", limits={"models": ["m-*"]})
    tenant = keys.tenant(key, 0, HERE)
    assert (tenant.lead, tenant.admin, tenant.user, tenant.models) == (True, False, "u", ("m-*",))
