"""Where a request comes from: the address of its client, behind proxies too, and whether it came there unencrypted.

What a client says of itself counts for nothing. `X-Forwarded-For` is read from its end, the part that the nearest proxy wrote,
and only as far as the addresses that say it are proxies of the operator's (`proxies` in the settings).
"""
from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
FORWARDED = "x-forwarded-for"
_SCHEME = "x-forwarded-proto"
_TOLD_S = 3_600.0
"""How long a key that came unencrypted is spoken of."""


class Origin(NamedTuple):
    """What the socket and the head say of who asks."""

    peer: str
    """The other end of the connection; empty where there is none."""
    forwarded: str | None = None
    """All of `X-Forwarded-For`, its lines in their order joined by commas."""


class Origins:
    """Knows the proxies in front."""

    def __init__(self, proxies: Iterable[str] = (), *, plain_http: bool = True) -> None:
        self._proxies = networks(proxies)
        self._plain_http = plain_http
        self._plain_at_s: float | None = None

    def client(self, origin: Origin) -> Address | None:
        """The client's address, as far as it can be trusted; None where something unreadable stands in its place."""
        address = parsed(origin.peer)
        if origin.forwarded is None or not self._is_proxy(address):
            return address
        for hop in reversed(origin.forwarded.split(",")):
            address = parsed(hop)
            if not self._is_proxy(address):
                return address
        return address

    def seen(self, peer: str, headers: Mapping[str, str]) -> None:
        """Notes whether a request with a key crossed a network unencrypted, as far as that can be told from here."""
        if self._plain_http:
            return
        address = parsed(peer)
        if self._is_proxy(address):
            plain = headers.get(_SCHEME, "https").rpartition(",")[2].strip().lower() == "http"
        else:
            plain = address is None or not address.is_loopback
        if plain:
            self._plain_at_s = time.monotonic()

    @property
    def warning(self) -> str | None:
        """For `/readyz`: whether keys came unencrypted within the last hour."""
        if self._plain_at_s is None or time.monotonic() - self._plain_at_s > _TOLD_S:
            return None
        return "keys came unencrypted within the last hour: a client reached the gateway without TLS in front of it"

    def _is_proxy(self, address: Address | None) -> bool:
        return address is not None and lies_in(address, self._proxies)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises `ValueError` for what is no address and no network."""
    return tuple([ip_network(text) for text in texts])


def lies_in(address: Address, places: Sequence[Network]) -> bool:
    return any([address in place for place in places])


@lru_cache(maxsize=4_096)
def parsed(text: str) -> Address | None:
    """An address as sockets and proxies write it: perhaps with a port, in brackets, or IPv4 in IPv6's clothes."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
