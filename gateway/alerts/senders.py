"""Takes alerts away: a webhook, Slack's shape of one, or e-mail. Addresses and passwords are secrets and are never logged."""
from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from typing import Any, Literal

import httpx

from gateway.alerts import Alert, Kind
from gateway.core.secret import Secret

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """How e-mail is sent."""

    host: str
    port: int
    sender: str
    to: tuple[str, ...]
    user: str | None = None
    password: Secret | None = None
    tls: Literal["starttls", "tls", "none"] = "starttls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Where alerts go, and which: of some teams and kinds, or (None) of all."""

    name: str
    shape: Literal["webhook", "slack", "email"]
    url: Secret | None = None
    mail: Mail | None = None
    teams: frozenset[str] | None = None
    kinds: frozenset[Kind] | None = None

    def wants(self, alert: Alert) -> bool:
        if alert.kind == "test":
            return True
        return (self.teams is None or alert.team in self.teams) and (self.kinds is None or alert.kind in self.kinds)


async def send(channel: Channel, alert: Alert, transport: httpx.AsyncBaseTransport | None = None) -> str | None:
    """None when it was taken, else what went wrong, in words that hold no secret."""
    try:
        if channel.mail is not None:
            await asyncio.to_thread(_mail, channel.mail, alert)
            return None
        assert channel.url is not None
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, transport=transport) as client:
            answer = await client.post(channel.url.reveal(), json=payload(channel, alert))
        return None if answer.is_success else f"answered {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return type(error).__name__
    except smtplib.SMTPResponseException as error:
        return f"the mail server answered {error.smtp_code}"
    except (smtplib.SMTPException, OSError) as error:
        return f"the mail server cannot be used ({type(error).__name__})"


def payload(channel: Channel, alert: Alert) -> Mapping[str, Any]:
    """What is posted. Slack reads `text`, in which `&`, `<` and `>` are its own marks."""
    if channel.shape == "slack":
        return {"text": f"*{_slack(alert.title)}*\n{_slack(alert.text)}"}
    return asdict(alert)


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mail(how: Mail, alert: Alert) -> None:
    message = EmailMessage()
    message["Subject"] = " ".join(f"[tollway] {alert.title}".split())
    message["From"], message["To"] = how.sender, ", ".join(how.to)
    message.set_content(f"{alert.text}\n\n{alert.id}\n")
    trusted = ssl.create_default_context()
    with (
        smtplib.SMTP_SSL(how.host, how.port, timeout=TIMEOUT_S, context=trusted) if how.tls == "tls"
        else smtplib.SMTP(how.host, how.port, timeout=TIMEOUT_S)
    ) as server:  # fmt: skip
        if how.tls == "starttls":
            server.starttls(context=trusted)
        if how.user is not None and how.password is not None:
            server.login(how.user, how.password.reveal())
        server.send_message(message)
