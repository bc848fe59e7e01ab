"""Requests that are passed on as they came: stored answers, files, batches, and the paths that `passthrough` names.

Bytes go both ways untouched; usage is read off the side where the answer has a known shape. A call that makes something is
booked like any other; one that only reads or deletes is booked if usage was still to come for what it reads. A provider's batch
makes what its file says, which is not seen here: it is booked when it is made, and what it cost when somebody asks how it goes.
"""
from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from msgspec.structs import replace

from gateway import late
from gateway.attempt import Outcome
from gateway.backends.fleet import Target
from gateway.backends.http import Answer, Stop, header
from gateway.backends.upstream import Body, Stopped, incoming, outgoing, read, unlocked
from gateway.booking import Booking, Plan
from gateway.core import clock
from gateway.core.call import Call
from gateway.core.errors import (
    BadRequest,
    Forbidden,
    GatewayError,
    ModelNotFound,
    NotFound,
    UnsupportedMedia,
    UpstreamError,
)
from gateway.core.part import NOTHING as NO_FILES
from gateway.dialects import passed, recognise
from gateway.dialects.passed import NOTHING, Wishes
from gateway.holds import Asked, Holds
from gateway.metering import estimate
from gateway.metering.prices import Offer
from gateway.planning import permit_model, permit_size, said
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
_MAKERS = frozenset({"compact"})
"""Paths under /v1/responses/ that make something, where others have an id."""
_FREE = frozenset({"cancel"})
"""What may be done to a stored answer by POST without making another."""
_COUNTS = "input_tokens"
"""The path under /v1/responses/ that only counts."""
_EVERY_MODEL = "*"
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Where a request goes, and whether it makes something that costs. A hang-up stops it unless the policy says drain."""

    method: str
    target: Target
    costs: bool
    stops: bool
    wishes: Wishes = NOTHING
    stored: str | None = None
    """The stored answer that it is about."""
    later: bool = False
    """Whether what it costs is told when what it makes is asked for."""

    @property
    def model(self) -> str:
        """The one that is booked; "" where none is named."""
        return self.wishes.models[0] if self.wishes.models else ""


class Passage:
    """Serves such requests with one set of services."""

    def __init__(self, via: Services, holds: Holds) -> None:
        self._via = via
        self._holds = holds

    async def serve(self, call: Call, method: str, place: str, client: Client) -> None:
        """Answers through `client`; `place` is path and query as they came. Raises only if nothing has been sent out."""
        policy = self._via.policies.current.for_team(call.tenant.team)
        call = said(call, policy)
        if place.startswith("/v1/") and len(parts := place.partition("?")[0].split("/", 4)) > 3:
            await self._via.stored.recall(unquote(parts[3]))
        way = self._way(call, policy, method, place)
        booking = self._booking(call, policy, way)
        if way.costs:
            self._permit_price(policy, way)
            call = booking.plan.call
            asked = Asked(booking.id, call, booking.ranked, way.target, len(call.body), booking.plan.attached)
            held = await self._holds.take(policy, asked)
            booking.hold = held.hold
            booking.open()
        else:
            await self._holds.admit(call, policy, booking.id)
        exchange = _Exchange(via=self._via, way=way, booking=booking, client=client)
        try:
            await exchange.run()
        finally:
            if way.costs and booking.entry is None:
                await booking.settle(exchange.outcome)

    # where it goes

    def _way(self, call: Call, policy: Policy, method: str, place: str) -> Way:
        if not place.startswith("/v1/"):
            return self._configured(call, policy, method, place)
        first, *rest = place.partition("?")[0].removeprefix("/v1/").split("/")
        stored = unquote(rest[0]) if rest and rest[0] else None
        target = self._keeper(call, policy, first, stored)
        path, stops = place.removeprefix("/v1"), policy.hang_up == "cancel"
        if first == "responses" and method == "POST" and stored != _COUNTS and not (len(rest) == 2 and rest[1] in _FREE):
            if stored not in _MAKERS:
                raise NotFound(f"POST does not go to {place[:100]}; answers are made at /v1/responses")
            return Way(method=method, target=target.at(path), costs=True, stops=stops, wishes=_permitted(call, policy, ""))
        if first == "batches":
            target = dataclasses.replace(target, batch=True)
            if method == "POST" and stored is None:
                self._permit_batch(call, policy)
                return Way(method=method, target=target.at(path), costs=True, stops=stops, later=True)
        return Way(method=method, target=target.at(path), costs=False, stops=stops, stored=stored)

    def _permit_batch(self, call: Call, policy: Policy) -> None:
        """Raises `Forbidden` where something would have to be known of the batch's calls."""
        if _narrowed(call, policy) or self._holds.pays(policy, call):
            raise Forbidden(
                "the gateway does not see what a provider's batch will do, and your key or policy has a budget, or limits "
                "models or output; the operator can have the gateway make batches itself (`queue:` in tollway.yaml)"
            )

    def _keeper(self, call: Call, policy: Policy, api: str, stored: str | None) -> Target:
        """The backend that keeps what is asked for; where that is not known, the first of the team's that could."""
        known = None if stored is None else self._via.stored.backend(stored, call.tenant.team)
        able = [target for target in self._via.fleet.targets.values() if api in target.apis and _allowed(policy, target)]
        for target in able:
            if known in (None, target.backend):
                return target
        raise NotFound(f"no backend here has /v1/{api}; the operator can add it to a backend's `speaks`")

    def _configured(self, call: Call, policy: Policy, method: str, place: str) -> Way:
        prefixes = self._via.settings.passthrough
        prefix = max((each for each in prefixes if place.startswith(each + "/")), key=len, default=None)
        if prefix is None:
            raise NotFound(f"there is nothing at {place[:100]}")
        target = next(target for target in self._via.fleet.targets.values() if target.backend == prefixes[prefix])
        if not _allowed(policy, target):
            raise Forbidden(f"backend {target.backend} is not among the team's backends")
        path, costs = place.removeprefix(prefix), method in ("POST", "PUT", "PATCH")
        seen = _permitted(call, policy, path) if costs else _permit_models(call, policy, Wishes(passed.in_path(path)))
        return Way(method=method, target=target.at(path), costs=costs, stops=policy.hang_up == "cancel", wishes=seen)

    def _permit_price(self, policy: Policy, way: Way) -> None:
        """Raises `Forbidden` where the policy refuses what is not priced."""
        offer = Offer(way.target.provider, way.model, way.target.priced_as, way.target.region)
        if policy.unpriced == "refuse" and self._via.prices.rates(offer, clock.now_us()) is None:
            model = way.model or "a request that names no model"
            raise Forbidden(f"no price is known for {model}, and the policy refuses what is not priced")

    def _booking(self, call: Call, policy: Policy, way: Way) -> Booking:
        """What is booked for it, in the words of a decision that had no choice."""
        target, klass = way.target, policy.classes[policy.default_class]
        lane = Lane(key=target.key, backend=target.backend, name=target.lane, models={way.model: Served(way.model)})
        ranked = Ranked(lane, way.model, 0.0, 0.0, 0.0, 0.0)
        decision = Decision(
            klass=klass, model=way.model, ranked=(ranked,), refused=(), reason=f"passed on to {target.backend}",
            policy_version=policy.version,
        )  # fmt: skip
        sketch = replace(
            call.sketch, model=way.model, max_output_tokens=way.wishes.output, answers=way.wishes.answers
        )  # fmt: skip
        call = replace(call, sketch=sketch)
        held = passed.embedded(call.body) if way.costs else NO_FILES
        plan = Plan(
            call=call, decision=decision, changes=(), chain=Chain(), lanes_seen=(),
            prompt_tokens=estimate.usual_input(len(call.body), held), cached={}, attached=held,
        )  # fmt: skip
        return Booking(
            plan=plan, via=self._via, number=1, id=f"{call.id}-1", ranked=ranked, target=target, predicted_read_tokens=0,
            sent=call.body,
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request to one backend; a stream's end is given out once the entry is in the journal."""

    via: Services
    way: Way
    booking: Booking
    client: Client
    stop: Stop = field(default_factory=Stop)
    outcome: Outcome = field(
        default_factory=lambda: Outcome(status="cut", error="the gateway failed on this call", sent=True)
    )
    began: float = field(default_factory=time.perf_counter)

    async def run(self) -> None:
        way, call, outcome, client = self.way, self.booking.plan.call, self.outcome, self.client
        if way.stops:
            client.on_gone(self.stop.set)
            if client.gone:
                self.stop.set()
        try:
            response = await self.via.upstream.send(way.target, call.body, _headers(call, way), self.stop, way.method)
            outcome.http_status = response.status
            await self._relay(response)
        except Stopped as stopped:
            outcome.status, outcome.error, outcome.sent = "client_gone", "the client left", stopped.sent
        except GatewayError as error:
            outcome.status, outcome.error = "failed" if outcome.http_status is None else "cut", str(error)
            if not client.started:
                raise
            client.ended = True  # and its connection breaks off too: a proper end would make half an answer look whole
        finally:
            client.on_gone(None)
            outcome.total_s = time.perf_counter() - self.began

    async def _relay(self, response: Answer) -> None:
        status, headers = response.status, [*_told(self.booking), *incoming(response)]
        if status in _CREDENTIALS:
            error = UpstreamError("the model backend does not accept the gateway's credentials; tell the operator")
            error.code = "backend_credentials"
            raise error
        kind = header(response, b"content-type")
        reader = recognise.Reader(kind, {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers})
        try:
            if kind.startswith(_STREAMS) or int(header(response, b"content-length") or _WHOLE_BYTES + 1) > _WHOLE_BYTES:
                self.client.begin(status, headers)
                await self._stream(response, reader)
                await self._settle(reader)
                await self.client.end()
                return
            body = await read(response, self.stop)
            if status >= 400:
                body = unlocked(body, self.way.target)
            reader.feed(body)
            told = await self._settle(reader)
            await self.client.respond(status, [*headers, *told], body)
        finally:
            self.outcome.observed = reader.observed
            await response.aclose()

    async def _stream(self, response: Answer, reader: recognise.Reader) -> None:
        behind, body = True, Body(response, self.stop)

        def take(chunk: bytes) -> bool:
            nonlocal behind
            reader.feed(chunk)
            behind = not self.client.write(chunk)
            return not behind

        while behind:
            behind = False
            await body.pump(take)
            await self.client.drained()

    async def _settle(self, reader: recognise.Reader) -> Sequence[tuple[bytes, bytes]]:
        reader.finish()
        way, outcome = self.way, self.outcome
        seen = outcome.observed = reader.observed
        fine = outcome.http_status is not None and outcome.http_status < 400
        outcome.status, outcome.error = ("ok", None) if fine else ("failed", f"the backend answered {outcome.http_status}")
        outcome.total_s = time.perf_counter() - self.began
        if way.later and fine:
            outcome.observed = replace(seen, pending=True, usage=None)
        if (way.later or not way.costs) and fine and way.method == "POST" and way.stored is None and seen.response_id:
            self.via.stored.keep(seen.response_id, self.booking.plan.call.tenant.team, way.target.backend)
        if way.costs:
            return await self.booking.settle(outcome)
        if fine:
            await late.book(self.via, way.stored, seen, way.target)
        return ()


def _permitted(call: Call, policy: Policy, path: str) -> Wishes:
    """What a call asks for that makes something, where key and policy allow it. What cannot be read is passed on as well, but
    not for those whom something is forbidden that it might say. Raises `GatewayError`."""
    packed = call.headers.get("content-encoding", "identity") != "identity" and bool(call.body)
    try:
        if packed:
            raise UnsupportedMedia("send it without content-encoding: what your policy or key limits has to be read")
        seen = passed.wishes(path, call.body)
    except (BadRequest, UnsupportedMedia):
        if _narrowed(call, policy):
            raise
        seen = Wishes(passed.in_path(path))
    permit_size(policy.limits, len(call.body), seen.answers, seen.output)
    if not seen.models:
        permit_model(call.tenant, "")
    return _permit_models(call, policy, seen)


def _permit_models(call: Call, policy: Policy, seen: Wishes) -> Wishes:
    """Raises `Forbidden`, `ModelNotFound`."""
    for model in seen.models:
        permit_model(call.tenant, model)
        if (refusal := resolve_model(policy, model).refusal) is not None:
            raise ModelNotFound(refusal, param="model")
    return seen


def _narrowed(call: Call, policy: Policy) -> bool:
    """Whether what a body may say is forbidden to this caller."""
    models, limits = policy.models, policy.limits
    every = not models.deny and any(glob.pattern == _EVERY_MODEL for glob in models.allow)
    return bool(call.tenant.models) or not every or limits.max_output_tokens is not None or limits.max_choices is not None


def _allowed(policy: Policy, target: Target) -> bool:
    return not policy.backends or first_match(policy.backends, target.backend) is not None


def _headers(call: Call, way: Way) -> list[tuple[bytes, bytes]]:
    described = [name for name in ("content-type", "content-encoding") if call.body and name in call.headers]
    own = [(name.encode("ascii"), call.headers[name].encode("latin-1")) for name in described]
    return [*own, *outgoing(way.target, call.headers, same_dialect=True)[1:]]


def _told(booking: Booking) -> Headers:
    call = booking.plan.call.id.encode()
    return [(b"x-tollway-call", call), (b"x-tollway-backend", booking.target.backend.encode("ascii", "replace"))]
