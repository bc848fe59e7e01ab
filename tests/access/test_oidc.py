"""Tokens of an identity provider: only its own, for us, in time, with a signature that only it can make."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.access import oidc
from gateway.access.oidc import Tokens
from gateway.core.errors import Overloaded, Unauthorized

ISSUER = "https://idp.test/realm"
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(key: Any, kid: str) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


class Provider:
    """Discovery and keys, over a transport."""

    def __init__(self) -> None:
        self.keys = [jwk(KEY, "one"), jwk(RSA, "two")]
        self.asked: list[str] = []
        self.away = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self.away:
            return httpx.Response(503)
        if request.url.path.endswith("openid-configuration"):
            return httpx.Response(200, json={"issuer": ISSUER, "jwks_uri": "https://idp.test/keys"})
        return httpx.Response(200, json={"keys": self.keys})


def tokens(provider: Provider, claim: str = "sub") -> Tokens:
    return Tokens(ISSUER, "tollway", claim, httpx.MockTransport(provider))


def token(key: Any = KEY, kid: str = "one", algorithm: str = "ES256", **claims: Any) -> str:
    told = {"iss": ISSUER, "aud": "tollway", "sub": "ann", "exp": int(time.time()) + 600, **claims}
    return jwt.encode({name: value for name, value in told.items() if value is not None}, key, algorithm, headers={"kid": kid})


async def test_a_good_token_names_its_person() -> None:
    """Elliptic curve and RSA; the provider is asked once."""
    provider = Provider()
    ours = tokens(provider)
    assert await ours.subject(token()) == "ann"
    assert await ours.subject(token(RSA, "two", "RS256", aud=["other", "tollway"])) == "ann"
    assert len(provider.asked) == 2
    assert await tokens(provider, "email").subject(token(email="a@x.test", email_verified=True)) == "a@x.test"


@pytest.mark.parametrize("make", [
    pytest.param(lambda: token(aud="another"), id="for somebody else"),
    pytest.param(lambda: token(iss="https://evil.test"), id="from somebody else"),
    pytest.param(lambda: token(exp=int(time.time()) - 3600), id="too old"),
    pytest.param(lambda: token(nbf=int(time.time()) + 3600), id="not yet good"),
    pytest.param(lambda: token(exp=None), id="without an end"),
    pytest.param(lambda: token(sub=None), id="about nobody"),
    pytest.param(lambda: token(OTHER), id="another's signature under a known name"),
    pytest.param(lambda: token(OTHER, "three"), id="a key that there is not"),
    pytest.param(lambda: token("shared" * 8, "one", "HS256"), id="a shared secret"),
    pytest.param(lambda: jwt.encode({"sub": "ann", "iss": ISSUER, "aud": "tollway", "exp": 2**33}, None, "none", {"kid": "one"}), id="no signature"),
    pytest.param(lambda: "a.b.c", id="noise"),
    pytest.param(lambda: "..", id="nothing"),
    pytest.param(lambda: token()[:-8] + "AAAAAAAA", id="spoilt"),
])  # fmt: skip
async def test_any_other_token_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(Unauthorized):
        await tokens(Provider()).subject(make())


async def test_an_unverified_address_names_nobody() -> None:
    """Whoever may choose an address at a provider must not become its owner here."""
    with pytest.raises(Unauthorized, match="verified"):
        await tokens(Provider(), "email").subject(token(email="boss@x.test"))


async def test_new_keys_are_fetched_but_not_at_every_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that changed its keys is asked again; tokens that name keys at random do not make us ask each time."""
    provider = Provider()
    ours = tokens(provider)
    await ours.subject(token())
    provider.keys.append(jwk(OTHER, "three"))
    for _ in range(5):
        with pytest.raises(Unauthorized):
            await ours.subject(token(OTHER, "three"))
    assert len(provider.asked) == 2
    monkeypatch.setattr(oidc, "AGAIN_S", 0.0)
    assert await ours.subject(token(OTHER, "three")) == "ann"


async def test_a_provider_that_is_away_says_so() -> None:
    """503 before its keys were ever had; afterwards those that are known go on."""
    provider = Provider()
    provider.away = True
    ours = tokens(provider)
    with pytest.raises(Overloaded):
        await ours.subject(token())
    provider.away = False
    assert await ours.subject(token()) == "ann"
    provider.away = True
    ours._fetched_s -= oidc.KEEP_S + 1
    assert await ours.subject(token()) == "ann"
