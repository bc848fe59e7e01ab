"""`POST /v1/messages/count_tokens`: asked of the backend where it can count, else estimated here and marked so.

Nothing is booked: providers do not charge for it. The estimate is tiktoken's, made in a thread.
"""
from __future__ import annotations

import asyncio

import orjson

from gateway import dialects
from gateway.backends.fleet import Target
from gateway.backends.http import Stop
from gateway.backends.upstream import Stopped, incoming, outgoing, read
from gateway.core.call import Call
from gateway.core.errors import UpstreamError, UpstreamTimeout
from gateway.dialects import fitting
from gateway.metering import estimate
from gateway.planning import Planning
from gateway.relay import Client
from gateway.services import Services

API, PATH = "count_tokens", "/v1/messages/count_tokens"
_ELSEWHERE = frozenset({401, 403, 404, 405, 408, 429})
"""What a backend may answer that leaves the client with our estimate, beside its own faults."""


class Counting:
    """Counts the prompt that the best lane would get."""

    def __init__(self, via: Services, planning: Planning) -> None:
        self._via = via
        self._planning = planning

    async def serve(self, call: Call, client: Client) -> None:
        """Answers through `client`. Raises `GatewayError` for what the policy does not allow or nobody serves."""
        plan = self._planning.plan(call, self._via.policies.current.for_team(call.tenant.team))
        ranked = plan.decision.ranked[0]
        target = self._via.fleet.road(ranked.lane.key, call.dialect)
        if API in target.apis and await self._asked(plan.call, target, ranked.upstream_model, client):
            return
        tokens = await asyncio.to_thread(_estimate, plan.call, ranked.upstream_model) + estimate.usual_beside(plan.attached)
        headers = [(b"content-type", b"application/json"), (b"x-tollway-estimate", b"true")]
        await client.respond(200, headers, orjson.dumps({"input_tokens": tokens}))

    async def _asked(self, call: Call, target: Target, model: str, client: Client) -> bool:
        """Whether the backend has answered."""
        name = call.dialect
        set_fields = dict.fromkeys(target.left_out(name, call.body, call.sketch.spans))
        body = dialects.request(name, name, call.body, call.sketch, model=model, set_fields=set_fields, ask_usage=False)
        body = fitting.accepted(body, name, target)
        body = fitting.shorten(body, fitting.names_for(body, name, target))
        stop = Stop()
        client.on_gone(stop.set)
        if client.gone:
            stop.set()
        try:
            headers = outgoing(target, call.headers, same_dialect=True)
            response = await self._via.upstream.send(target.at(PATH.removeprefix("/v1")), body, headers, stop)
            answer = await read(response, stop)
        except (UpstreamError, UpstreamTimeout):
            return False
        except Stopped:
            return True
        finally:
            client.on_gone(None)
        status = response.status
        if status in _ELSEWHERE or 300 <= status < 400 or status >= 500 or (status < 300 and not _counted(answer)):
            return False
        await client.respond(response.status, incoming(response), answer)
        return True


def _counted(answer: bytes) -> bool:
    """Whether this is a count."""
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and type(document.get("input_tokens")) is int


def _estimate(call: Call, model: str) -> int:
    return estimate.count("".join(dialects.count_text(call.dialect, call.body, call.sketch)), model).tokens
