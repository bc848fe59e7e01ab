"""A line of a batch as the call that it is, and the lanes that it may take: those at once, and the providers' batches."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway import dialects
from gateway.backends.fleet import Fleet, Target
from gateway.batches.book import Batch, Line
from gateway.batches.desk import ENDPOINTS
from gateway.core import clock
from gateway.core.call import Call
from gateway.core.errors import Unauthorized
from gateway.core.ids import new_id
from gateway.planning import permitted
from gateway.services import Services
from router_policies.globs import first_match
from router_policies.policy import Resolved, resolve_model
from router_policies.rules import Klass, Policy
from router_policies.types import Lane


class Ready(NamedTuple):
    """A line as a call, and the policy that it is decided by."""

    line: Line
    batch: Batch
    call: Call
    policy: Policy
    klass: Klass

    @property
    def name(self) -> str:
        return name_of(self.line)

    @property
    def resolved(self) -> Resolved:
        return resolve_model(self.policy, self.call.sketch.model)


def name_of(line: Line) -> str:
    """What a provider is told as custom id: ours, for the client's may be anything."""
    return f"{line.batch}-{line.n}"


def ready(via: Services, line: Line, batch: Batch) -> Ready:
    """Raises `GatewayError` for what can never be made."""
    record, tenant = via.keys.record(batch.key_id), via.keys.known(batch.key_id)
    at_us = clock.now_us()
    if tenant is None or record is None or record.ended(at_us):
        raise Unauthorized("the API key of this batch was revoked or has expired")
    dialect, wished, who = ENDPOINTS[batch.endpoint], batch.detail["class"], batch.detail["who"]
    policy = via.policies.current.for_team(batch.team)
    granted = wished in policy.classes and policy.client_may.choose(wished)
    call = Call(
        id=new_id("call_", at_us), dialect=dialect, tenant=tenant,
        sketch=dialects.read(dialect, line.body, batch.team), body=line.body, path=batch.endpoint,
        headers={"x-tollway-class": wished}, at_us=at_us, **who,
    )  # fmt: skip
    return Ready(line, batch, permitted(call, policy), policy, policy.classes[wished if granted else policy.default_class])


def live(fleet: Fleet, one: Ready) -> list[str]:
    """Names of the ordinary lanes that serve the call's model."""
    return [lane.name for lane in fleet.lanes(one.call.dialect) if one.resolved.model in lane.models]


def offline(fleet: Fleet, one: Ready, resting: Mapping[str, float], now_s: float) -> tuple[Lane, Target] | None:
    """The provider's batch that the class prefers, if it may use one; `resting`: lanes that are left alone until then."""
    policy, resolved = one.policy, one.resolved
    if resolved.refusal is not None:
        return None
    found = [
        (one.klass.place(lane.name), lane.key, lane, target)
        for lane, target in fleet.offline(one.call.dialect, resolved.model)
        if resting.get(lane.key, 0.0) <= now_s and first_match(one.klass.wait.lanes, lane.name) is not None
        and (not policy.backends or first_match(policy.backends, lane.backend) is not None)
    ]  # fmt: skip
    places = [(place, key, lane, target) for place, key, lane, target in found if place is not None]
    return min(places, key=lambda each: each[:2])[2:] if places else None
