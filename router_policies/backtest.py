"""Two sets of policies over the same traffic and the same luck: what would have come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from router_policies.files import PolicySet
from router_policies.policy import decide
from router_policies.sensitivity import Learnt
from router_policies.simulate import Choice, Reality, Recorded, Router, World
from router_policies.tally import Tally
from router_policies.types import Ask, ForecastOf, Lane

_TOLD = 5_000  # calls between two words of progress


def router(policies: PolicySet, learnt: Learnt | None = None) -> Router:
    """The decision of the gateway."""

    def route(ask: Ask, lanes: Sequence[Lane], forecast: ForecastOf) -> Choice:
        decision = decide(policies.for_team(ask.team), ask, lanes, learnt, forecast, worded=False)
        if not decision.ranked:
            return Choice(None, decision.klass)
        best = decision.ranked[0]
        return Choice(best.lane, decision.klass, best.expected_cost_usd, best.expected_wait_s)

    return route


def run(
    route: Router, calls: Iterable[Recorded], lanes: Iterable[Reality], seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Tally:  # fmt: skip
    """Sends all calls through a router. `progress` is told the calls done so far."""
    tally = Tally()
    class_name = ""

    def named(ask: Ask, lanes: Sequence[Lane], forecast: ForecastOf) -> Choice:
        nonlocal class_name
        choice = route(ask, lanes, forecast)
        class_name = choice.klass.name
        return choice

    for number, (call, served) in enumerate(World(lanes, seed).run(calls, named), 1):
        tally.add(call, served, class_name)
        if progress is not None and number % _TOLD == 0:
            progress(number)
    return tally
