"""Alerts arrive: by a real webhook, in Slack's shape, by a real mail server."""
from __future__ import annotations

import asyncio
import contextlib
import json
from email import message_from_bytes

import pytest

from gateway.alerts import Alert, senders
from gateway.alerts.senders import Channel, Mail
from gateway.core.secret import Secret
from tests.upstream import Upstream, whole

NOW = 1_764_072_000_000_000     # 2025-11-25 12:00 UTC
ALERT = Alert(id="budget/x", kind="budget", team="search", title="80 % <spent> & more", text="$8 of $10", at_us=NOW)


@pytest.mark.parametrize("shape", ["webhook", "slack"])
async def test_a_webhook_gets_what_it_reads(shape) -> None:
    with contextlib.closing(Upstream()) as server:
        site = server.site("hook")
        site.says(whole({}))
        channel = Channel(name="hook", shape=shape, url=Secret(site.url + "/T000/secret"))
        assert await senders.send(channel, ALERT) is None
        body = json.loads(site.requests[0].body)
    if shape == "slack":
        assert body == {"text": "*80 % &lt;spent&gt; &amp; more*\n$8 of $10"}
    else:
        assert (body["id"], body["team"], body["title"]) == ("budget/x", "search", "80 % <spent> & more")


async def test_what_goes_wrong_is_said_without_the_address() -> None:
    channel = Channel(name="hook", shape="webhook", url=Secret("http://127.0.0.1:9/secret"))
    assert await senders.send(channel, ALERT) == "ConnectError"
    mail = Channel(name="mail", shape="email", mail=Mail(host="127.0.0.1", port=9, sender="a@x", to=("b@x",), tls="none"))
    assert await senders.send(mail, ALERT) == "the mail server cannot be used (ConnectionRefusedError)"


async def test_mail_is_sent_by_smtp() -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 test\r\n")
        while line := await reader.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                body = b""
                while (line := await reader.readline()) != b".\r\n":
                    body += line
                got.append(body)
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    mail = Mail(host="127.0.0.1", port=port, sender="tollway@example.com", to=("a@example.com", "b@example.com"), tls="none")
    assert await senders.send(Channel(name="mail", shape="email", mail=mail), ALERT) is None
    server.close()
    message = message_from_bytes(got[0])
    assert (message["Subject"], message["To"]) == ("[tollway] 80 % <spent> & more", "a@example.com, b@example.com")
    assert "$8 of $10" in message.get_payload()
