"""Whose word counts on where a request comes from: the socket's, and that of proxies which the operator named."""
from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.origins import Origin, Origins, parsed

PROXIES = ["10.0.0.0/8", "2001:db8::/32"]


@pytest.mark.parametrize(("peer", "forwarded", "client"), [
    pytest.param("203.0.113.7", None, "203.0.113.7", id="nobody between"),
    pytest.param("203.0.113.7", "198.51.100.1", "203.0.113.7", id="what a client says of itself"),
    pytest.param("10.0.0.1", "203.0.113.7", "203.0.113.7", id="what a proxy says"),
    pytest.param("10.0.0.1", "198.51.100.1, 203.0.113.7", "203.0.113.7", id="what the client told the proxy"),
    pytest.param("10.0.0.1", "198.51.100.1, 203.0.113.7, 10.1.2.3", "203.0.113.7", id="two proxies"),
    pytest.param("10.0.0.1", "10.9.9.9, 10.1.2.3", "10.9.9.9", id="a client inside"),
    pytest.param("10.0.0.1", None, "10.0.0.1", id="a proxy's own request"),
    pytest.param("10.0.0.1", "203.0.113.7:4711", "203.0.113.7", id="with a port"),
    pytest.param("10.0.0.1", "[2001:db9::1]:443", "2001:db9::1", id="in brackets"),
    pytest.param("::ffff:203.0.113.7", None, "203.0.113.7", id="IPv4 on an IPv6 socket"),
    pytest.param("::ffff:10.0.0.1", "::ffff:203.0.113.7", "203.0.113.7", id="both so"),
    pytest.param("fe80::1%eth0", None, "fe80::1", id="with a zone"),
    pytest.param("10.0.0.1", "203.0.113.7, unknown", None, id="a proxy that does not tell"),
    pytest.param("10.0.0.1", "", None, id="an empty word"),
    pytest.param("10.0.0.1", "203.0.113.7,", None, id="a comma at the end"),
    pytest.param("10.0.0.1", "0x7f.1", None, id="no address"),
    pytest.param("", "203.0.113.7", None, id="no socket's address"),
])  # fmt: skip
def test_the_client_is_the_last_one_that_no_proxy_is(peer: str, forwarded: str | None, client: str | None) -> None:
    found = Origins(PROXIES).client(Origin(peer, forwarded))
    assert found == (None if client is None else ip_address(client))


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_stands_for_another_client_than_the_socket_says(claim: str, peer_claim: str) -> None:
    """Whatever is in front of the part that our proxy wrote."""
    origins = Origins(PROXIES)
    assert origins.client(Origin("10.0.0.1", f"{claim},203.0.113.7")) == ip_address("203.0.113.7")
    assert origins.client(Origin("203.0.113.7", claim)) == ip_address("203.0.113.7")
    assert parsed(peer_claim) is None or str(parsed(peer_claim))


@pytest.mark.parametrize(("peer", "proto", "plain"), [
    pytest.param("203.0.113.7", None, True, id="around the proxy"),
    pytest.param("203.0.113.7", "https", True, id="whatever it says"),
    pytest.param("10.0.0.1", "http", True, id="the proxy was spoken to without TLS"),
    pytest.param("10.0.0.1", "https, http", True, id="the last word is the nearest proxy's"),
    pytest.param("10.0.0.1", "https", False, id="with TLS"),
    pytest.param("10.0.0.1", None, False, id="a proxy that does not tell"),
    pytest.param("127.0.0.1", None, False, id="on this machine"),
])  # fmt: skip
def test_keys_that_came_unencrypted_are_spoken_of(peer: str, proto: str | None, plain: bool) -> None:
    headers = {} if proto is None else {"x-forwarded-proto": proto}
    origins, resigned = Origins(PROXIES, plain_http=False), Origins(PROXIES, plain_http=True)
    origins.seen(peer, headers)
    resigned.seen(peer, headers)
    assert (origins.warning is not None) == plain
    assert resigned.warning is None
