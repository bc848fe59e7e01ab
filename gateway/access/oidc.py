"""Tokens of an OpenID Connect provider -> who they are about. Signatures and claims are PyJWT's work, none of ours.

The provider's keys are fetched from the address that its discovery document names, kept for ten minutes, and fetched again
when a token names a key that is not among them, at most twice a minute. Only asymmetric algorithms count: a token signed with a
shared secret, or not at all, is wrong whatever it says.
"""
from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import jwt

from gateway.core.errors import Overloaded, Unauthorized

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
KEEP_S, AGAIN_S, LEEWAY_S = 600.0, 30.0, 30
_MOST_BYTES = 1 << 20


class Tokens:
    """Checks the tokens of one issuer for one audience."""

    def __init__(
        self, issuer: str, audience: str, claim: str = "sub", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.issuer = issuer
        self._audience, self._claim, self._transport = audience, claim, transport
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_s = -KEEP_S
        self._lock = asyncio.Lock()

    async def subject(self, token: str) -> str:
        """Whom the token is about. Raises `Unauthorized`, or `Overloaded` while the provider's keys cannot be had."""
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            claims: dict[str, Any] = await asyncio.to_thread(
                jwt.decode, token, key, algorithms=ALGORITHMS, audience=self._audience, issuer=self.issuer, leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._claim]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError as error:
            raise Unauthorized("your sign-in has expired; sign in again") from error
        except jwt.PyJWTError as error:
            raise Unauthorized("the token is not one that is accepted here") from error
        subject = claims[self._claim]
        if self._claim == "email" and claims.get("email_verified") is not True:
            raise Unauthorized("your identity provider has not verified your e-mail address")
        if not isinstance(subject, str) or not subject:
            raise Unauthorized("the token does not say who you are")
        return subject

    async def _key(self, kid: str) -> jwt.PyJWK:
        age_s = time.monotonic() - self._fetched_s
        if age_s > KEEP_S or (kid not in self._keys and age_s > AGAIN_S):
            async with self._lock:
                if time.monotonic() - self._fetched_s >= age_s:     # nobody did while we waited
                    await self._fetch()
        if kid not in self._keys:
            raise jwt.InvalidTokenError("no such key")
        return self._keys[kid]

    async def _fetch(self) -> None:
        self._fetched_s = time.monotonic()
        try:
            async with httpx.AsyncClient(transport=self._transport, trust_env=False, timeout=5.0) as client:
                place = (await _json(client, f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"))["jwks_uri"]
                found = jwt.PyJWKSet.from_dict(await _json(client, place))
        except (httpx.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
            if self._keys:
                return                          # those that we have go on
            self._fetched_s = -KEEP_S
            raise Overloaded("the identity provider's keys cannot be fetched right now", retry_after_s=5) from error
        self._keys = {key.key_id: key for key in found.keys if key.key_id}


async def _json(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    answer = await client.get(url)
    answer.raise_for_status()
    if len(answer.content) > _MOST_BYTES:
        raise ValueError("too long")
    found: dict[str, Any] = answer.json()
    return found
