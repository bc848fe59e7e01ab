"""People at the usage and admin paths, who come with a token of an identity provider or through a proxy that names them.

A request with a key of ours is that key's. The proxy's header counts only from the addresses that the settings state, as the
socket tells them; from anywhere else it is as if it were not there. Model calls take keys only.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from gateway.access.keys import key_id
from gateway.access.origins import lies_in, networks, parsed
from gateway.access.people import PROXY, People
from gateway.settings_file import LoginSettings
from gateway.web.heads import presented_key
from gateway.web.routes import PERSON

if TYPE_CHECKING:
    from gateway.access.oidc import Tokens


class SignIn:
    """The first of Litestar's guards: finds out which person asks, if one does; before a body is looked at."""

    def __init__(self, settings: LoginSettings, people: People) -> None:
        self._people = people
        self._tokens: Tokens | None = None
        if settings.oidc_issuer is not None:
            from gateway.access.oidc import Tokens  # its cryptography takes a tenth of a second of a start that needs none

            self._tokens = Tokens(settings.oidc_issuer, settings.oidc_audience or "", settings.oidc_claim)
        self._header = settings.proxy_header
        self._proxies = networks(settings.proxy_addresses)

    async def __call__(self, request: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        """Raises `Unauthorized` for a token that is none of ours, and for people whom nobody has let in."""
        if not request.url.path.startswith(("/tollway/", "/v1/models")):
            return
        shown = presented_key(request.headers)
        if shown is not None and key_id(shown) is not None:
            return
        if self._tokens is not None and shown is not None and shown.count(".") == 2:
            subject = await self._tokens.subject(shown)
            request.scope["state"][PERSON] = self._people.find(self._tokens.issuer, subject)
        elif self._header is not None and (subject := request.headers.get(self._header, "").strip()) and self._proxied(request):
            request.scope["state"][PERSON] = self._people.find(PROXY, subject)

    def _proxied(self, request: ASGIConnection[Any, Any, Any, Any]) -> bool:
        address = parsed(request.client.host if request.client else "")
        return address is not None and lies_in(address, self._proxies)
