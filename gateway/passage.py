"""Requests that are passed on as they came: stored answers, files, batches, and the paths that `passthrough` names.

Bytes go both ways untouched; usage is read off the side where the answer has a known shape. A call that makes something is
booked like any other; one that only reads or deletes is booked if usage was still to come for what it reads.
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from urllib.parse import parse_qsl, unquote, urlencode

from gateway.attempt import Outcome
from gateway.backends.fleet import Target
from gateway.backends.http import Answer, Stop, header
from gateway.backends.upstream import Stopped, chunks, incoming, outgoing, read
from gateway.booking import Booking, Plan
from gateway.core.call import Call
from gateway.core.errors import BadRequest, Forbidden, GatewayError, ModelNotFound, NotFound, UpstreamError
from gateway.core.outcome import Observed
from gateway.dialects import recognise, splice
from gateway.holds import Holds
from gateway.ledger import Entry
from gateway.prefix.chain import Chain
from gateway.relay import Client
from gateway.services import Services
from router_policies.globs import first_match
from router_policies.policy import resolve_model
from router_policies.rules import Policy
from router_policies.types import Decision, Lane, Ranked, Served

_WHOLE_BYTES = 8 * 1024 * 1024
_STREAMS = ("text/event-stream", "application/vnd.amazon.eventstream")
_CREDENTIALS = frozenset({401, 403})
_NAMED_IN_PATH = ("models", "model", "deployments")
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Where a request goes, and whether it makes something that costs."""

    method: str
    target: Target
    model: str
    costs: bool
    stored: str | None = None
    """The stored answer that it is about."""


class Passage:
    """Serves such requests with one set of services."""

    def __init__(self, via: Services, holds: Holds) -> None:
        self._via = via
        self._holds = holds

    async def serve(self, call: Call, method: str, query: str, client: Client) -> None:
        """Answers through `client`. Raises `GatewayError` only if nothing has been sent out."""
        policy = self._via.policies.current.for_team(call.tenant.team)
        self._via.rates.admit(call.tenant.team, policy.limits.requests_per_minute)
        way = self._way(call, policy, method, query)
        booking = self._booking(call, policy, way)
        if way.costs:
            held = await self._holds.take(call, policy, booking.ranked, way.target, booking.id, len(call.body))
            booking.hold = held.hold
            booking.open()
        outcome = Outcome(status="cut", error="the gateway failed on this call", sent=True)
        try:
            await self._exchange(call, way, booking, outcome, client)
        finally:
            if way.costs and booking.entry is None:
                await booking.settle(outcome)

    # where it goes

    def _way(self, call: Call, policy: Policy, method: str, query: str) -> Way:
        first, *rest = call.path.removeprefix("/v1/").split("/")
        if not call.path.startswith("/v1/"):
            return self._configured(call, policy, method, query)
        stored = unquote(rest[0]) if rest and rest[0] else None
        target = self._keeper(call, policy, first, stored)
        path = call.path.removeprefix("/v1") + query
        return Way(method=method, target=target.at(path), model="", costs=False, stored=stored)

    def _keeper(self, call: Call, policy: Policy, api: str, stored: str | None) -> Target:
        """The backend that keeps what is asked for; where that is not known, the first of the team's that could."""
        known = None if stored is None else self._via.stored.backend(stored, call.tenant.team)
        able = [target for target in self._via.fleet.targets.values() if api in target.apis and _allowed(policy, target)]
        for target in able:
            if known in (None, target.backend):
                return target
        raise NotFound(f"no backend here has /v1/{api}; the operator can add it to a backend's `speaks`")

    def _configured(self, call: Call, policy: Policy, method: str, query: str) -> Way:
        prefixes = self._via.settings.passthrough
        prefix = max((each for each in prefixes if call.path.startswith(each + "/")), key=len)
        target = next(target for target in self._via.fleet.targets.values() if target.backend == prefixes[prefix])
        if not _allowed(policy, target):
            raise Forbidden(f"backend {target.backend} is not among the team's backends")
        path = call.path.removeprefix(prefix)
        model = _model(path, call.body)
        if model and (refusal := resolve_model(policy, model).refusal) is not None:
            raise ModelNotFound(refusal, param="model")
        return Way(method=method, target=target.at(path + query), model=model, costs=method in ("POST", "PUT", "PATCH"))

    def _booking(self, call: Call, policy: Policy, way: Way) -> Booking:
        """What is booked for it, in the words of a decision that had no choice."""
        target, klass = way.target, policy.classes[policy.default_class]
        lane = Lane(key=target.key, backend=target.backend, name=target.lane, models={way.model: Served(way.model)})
        ranked = Ranked(lane, way.model, 0.0, 0.0, 0.0, 0.0)
        decision = Decision(
            klass=klass, model=way.model, ranked=(ranked,), refused=(), reason=f"passed on to {target.backend}",
            policy_version=policy.version,
        )  # fmt: skip
        call = replace(call, sketch=replace(call.sketch, model=way.model))
        plan = Plan(
            call=call, decision=decision, changes=(), chain=Chain((), ()), lanes_seen=(),
            prompt_tokens=max(len(call.body) // 4, 1), cached={},
        )  # fmt: skip
        return Booking(
            plan=plan, via=self._via, number=1, ranked=ranked, target=target, predicted_read_tokens=0, sent=call.body
        )  # fmt: skip

    # the exchange

    async def _exchange(self, call: Call, way: Way, booking: Booking, outcome: Outcome, client: Client) -> None:
        stop, began = Stop(), time.perf_counter()
        client.on_gone(stop.set)
        try:
            response = await self._via.upstream.send(way.target, call.body, _headers(call, way), stop, way.method)
            outcome.http_status = response.status
            await self._relay(response, stop, way, booking, outcome, client)
        except Stopped as stopped:
            outcome.status, outcome.error, outcome.sent = "client_gone", "the client left", stopped.sent
        except GatewayError as error:
            outcome.status, outcome.error = "failed" if outcome.http_status is None else "cut", str(error)
            if not client.started:
                raise
            await client.end()
        finally:
            client.on_gone(None)
            outcome.total_s = time.perf_counter() - began

    async def _relay(
        self, response: Answer, stop: Stop, way: Way, booking: Booking, outcome: Outcome, client: Client
    ) -> None:
        status, headers = response.status, [*_told(booking), *incoming(response)]
        if status in _CREDENTIALS:
            error = UpstreamError("the model backend does not accept the gateway's credentials; tell the operator")
            error.code = "backend_credentials"
            raise error
        kind = header(response, b"content-type")
        reader = recognise.Reader(kind, {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers})
        try:
            if kind.startswith(_STREAMS) or int(header(response, b"content-length") or _WHOLE_BYTES + 1) > _WHOLE_BYTES:
                await client.start(status, headers)
                async for chunk in chunks(response, stop):
                    reader.feed(chunk)
                    await client.send(chunk)
                await self._settle(reader, way, booking, outcome)
                await client.end()
                return
            body = await read(response, stop)
            reader.feed(body)
            told = await self._settle(reader, way, booking, outcome)
            await client.respond(status, [*headers, *told], body)
        finally:
            outcome.observed = reader.observed
            await response.aclose()

    async def _settle(
        self, reader: recognise.Reader, way: Way, booking: Booking, outcome: Outcome
    ) -> Sequence[tuple[bytes, bytes]]:
        reader.finish()
        seen = outcome.observed = reader.observed
        fine = outcome.http_status is not None and outcome.http_status < 400
        outcome.status, outcome.error = ("ok", None) if fine else ("failed", f"the backend answered {outcome.http_status}")
        if way.costs:
            return await booking.settle(outcome)
        if fine and way.method == "POST" and way.stored is None and seen.response_id:
            self._via.stored.keep(seen.response_id, booking.plan.call.tenant.team, way.target.backend)
        if fine and way.stored in self._via.late and seen.usage is not None and seen.usage.output is not None:
            await self._book_late(way.stored, seen, way.target)
        return ()

    async def _book_late(self, name: str, seen: Observed, target: Target) -> None:
        """What a background answer took, as a correction of the entry of the call that asked for it."""
        old, hold = self._via.late.pop(name)
        assert seen.usage is not None
        tier, model = seen.served_tier or old.served_tier, seen.served_model or old.upstream_model
        priced = self._via.prices.price(
            old.provider, model, seen.usage, tier=tier, at_us=old.at_us, region=target.region, batch=target.batch
        )
        entry: Entry = replace(
            old, id=f"{old.id}-late", kind="correction", corrects=old.id, at_us=time.time_ns() // 1_000, served_model=model,
            served_tier=tier, status="unpriced" if priced.cost_nanos is None else "ok", tokens=seen.usage,
            tokens_from="provider", cost_nanos=priced.cost_nanos, uncached_cost_nanos=priced.uncached_cost_nanos,
            price_rows=priced.rows, reason="usage of a background answer, known when it was fetched",
        )  # fmt: skip
        await self._via.ledger.append(entry)
        if hold is not None:
            await self._via.budgets.settle(hold, priced.cost_nanos)


def without_key(query: str) -> str:
    """A query as it travels: Google's clients may put their key into it, which is ours and stays here."""
    if "key=" in query:
        query = urlencode([(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "key"])
    return f"?{query}" if query else ""


def _allowed(policy: Policy, target: Target) -> bool:
    return not policy.backends or first_match(policy.backends, target.backend) is not None


def _model(path: str, body: bytes) -> str:
    """The model that a request names, in its body or its path; "" where it names none."""
    if body[:1] == b"{":
        try:
            places = splice.spans(body)
        except BadRequest:
            places = {}
        if (place := places.get("model")) is not None:
            return body[slice(*place)].decode().strip('"')
    parts = [unquote(part) for part in path.split("/")]
    for name, after in pairwise(parts):
        if name in _NAMED_IN_PATH:
            return after.partition(":")[0] if name == "models" else after
    return ""


def _headers(call: Call, way: Way) -> list[tuple[bytes, bytes]]:
    headers = outgoing(way.target, call.headers, same_dialect=True)[1:]
    kind = call.headers.get("content-type")
    return [(b"content-type", kind.encode("latin-1")), *headers] if kind and call.body else headers


def _told(booking: Booking) -> Headers:
    call = booking.plan.call.id.encode()
    return [(b"x-tollway-call", call), (b"x-tollway-backend", booking.target.backend.encode("ascii", "replace"))]
