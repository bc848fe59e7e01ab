"""What plans may lose against the untouched client, for any small file of sessions: few calls, short prompts, pauses, one-shots.

The planner alone against the simulated caches (`benchmarks/prefix_alone.py`); the gateway around it changes nothing about it.
"""
from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.prefix import FAMILIES, prices_of, through, wire_body
from benchmarks.prefix_alone import alone, untouched
from benchmarks.prefix_traffic import Family, traffic
from benchmarks.prefix_world import world
from benchmarks.providers.rules import PROVIDERS
from gateway.demo.sessions import Session

PLAIN, GAPS, ONE_SHOT = (next(each for each in FAMILIES if each.name == name) for name in ("plain", "uneven gaps", "one-shot"))
FREE_WRITES = 2


def text(rng: Random, tokens: int) -> str:
    return f"{rng.random():.17f} " * max(tokens // 5, 1)


def tool(rng: Random, tokens: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{rng.randrange(99)}", "description": text(rng, tokens), "parameters": {"type": "object"}}}


def file(rng: Random, tools: int) -> list[Session]:
    """Sessions of one app: what they share, how long they are and how many, all by chance."""
    size, first = rng.choice((100, 600, 2_000)), rng.choice((30, 300, 1_500, 6_000))
    shared = [tool(rng, size) for _ in range(tools)]
    system = text(rng, rng.choice((50, 800, 3_000, 7_000))) if rng.random() < 0.7 else ""
    turns, sessions = rng.choice((1, 1, 2, 3, 5, 10)), list[Session]()
    for number in range(rng.choice((1, 1, 2, 3, 5, 8))):
        messages = [{"role": "system", "content": system}] if system else []
        ends = []
        for turn in range(rng.randrange(turns) + 1):
            messages += [{"role": "assistant", "content": text(rng, 60)}] if turn else []
            messages.append({"role": "user", "content": text(rng, first if not turn or rng.random() < 0.3 else first // 6)})
            ends.append(len(messages))
        sessions.append(Session(id=f"s{number}", tools=shared, messages=messages, turns=ends))
    return sessions


def costs(provider: str, family: Family, sessions: list[Session]) -> tuple[float, float, float]:
    """Planned, untouched, and of the dearest call."""
    at = PROVIDERS[provider]
    timed = traffic(family, sessions, 4 if family is ONE_SHOT else 1)
    bodies = [(one.at_s, wire_body(at, one.body, family)) for one in timed]
    dearest = max(untouched(at, [body], prices_of(at)) for body in bodies)
    return alone(at, bodies, prices_of(at)), untouched(at, bodies, prices_of(at)), dearest


@given(st.integers(0, 1 << 32), st.sampled_from(("anthropic", "bedrock")), st.sampled_from((PLAIN, GAPS, ONE_SHOT)), st.integers(0, 1))
@example(4, "anthropic", GAPS, 0)
@settings(max_examples=40, deadline=None)
def test_what_is_no_agents_never_costs_a_hundredth_more(seed: int, provider: str, family: Family, tools: int) -> None:
    """However few its calls are; a prompt that is very long has one write free of cover."""
    planned, direct, dearest = costs(provider, family, file(Random(seed), tools))
    free = 0.25 * dearest if dearest >= 16_000 else 0.0
    assert planned <= 1.01 * direct + free


@given(st.integers(0, 1 << 32), st.sampled_from(("anthropic", "bedrock")), st.sampled_from((PLAIN, GAPS, ONE_SHOT)))
@settings(max_examples=30, deadline=None)
def test_agents_may_lose_some_first_writes(seed: int, provider: str, family: Family) -> None:
    """Of a family of one or two calls nothing can be known; what is risked for the others is two writes, each for an hour at most."""
    planned, direct, dearest = costs(provider, family, file(Random(seed), 4))
    assert planned <= 1.01 * direct + FREE_WRITES * dearest


@pytest.mark.parametrize("provider", ["anthropic", "openai-5.6"])
def test_the_gateway_costs_what_the_planner_does(provider: str) -> None:
    at, sessions = PROVIDERS[provider], file(Random(12), 4)
    timed = traffic(PLAIN, sessions)
    with world({"normalize": {"level": "lossless", "hold_out": 0}}) as running:
        whole = through(running, at, timed, prices_of(at), PLAIN, 0.0, {})
    assert alone(at, [(one.at_s, wire_body(at, one.body, PLAIN)) for one in timed], prices_of(at)) == pytest.approx(whole, rel=0.01)


def talks(many: int, turns: int) -> list[Session]:
    """Conversations that have nothing in common but their tools."""
    rng, found = Random(many), list[Session]()
    tools = [tool(rng, 800) for _ in range(4)]
    for number in range(many):
        messages, ends = [{"role": "system", "content": text(rng, 1_000)}], []
        for _ in range(turns):
            messages += [{"role": "user", "content": text(rng, 300)}]
            ends.append(len(messages))
            messages.append({"role": "assistant", "content": text(rng, 60)})
        found.append(Session(id=f"t{number}", tools=tools, messages=messages[:-1], turns=ends))
    return found


@pytest.mark.parametrize("family", [PLAIN, ONE_SHOT])
def test_agents_whose_calls_have_nothing_in_common_cost_a_hundredth_more_at_most(family: Family) -> None:
    """Forty of them, each an app of its own: two first writes are all that is ever lost."""
    apps = [file(Random(number), 4)[0] for number in range(40)]
    first = [session.model_copy(update={"turns": session.turns[:1], "messages": session.messages[: session.turns[0]]}) for session in apps]
    planned, direct, _ = costs("anthropic", family, first)
    assert planned <= 1.01 * direct


@pytest.mark.parametrize("tokens", [50, 400])
def test_an_agent_with_few_short_tools_is_written_from_its_second_call_on(tokens: int) -> None:
    """Tools and system prompt are too short to be stored by themselves; that they are not takes nothing from what may be lost."""
    rng = Random(7)
    messages = [{"role": "system", "content": "Be brief."}]
    messages += [{"role": ("user", "assistant")[n % 2], "content": text(rng, 2_000 if not n else 200)} for n in range(23)]
    one = Session(id="s", tools=[tool(rng, tokens // 2) for _ in range(2)], messages=messages, turns=list(range(2, 25, 2)))
    planned, direct, _ = costs("anthropic", PLAIN, [one])
    assert planned <= 0.5 * direct


@pytest.mark.parametrize("turns", [2, 4])
def test_marks_do_not_take_the_place_of_a_cache_that_works_as_well(turns: int) -> None:
    """Qwen, conversations of a few turns: their tools are read from the automatic cache, which prompts with marks leave."""
    planned, direct, _ = costs("qwen", PLAIN, talks(12, turns))
    assert planned <= 1.01 * direct


def test_marks_are_used_where_calls_have_shown_that_they_win() -> None:
    """Qwen, long conversations: what they would have saved is seen without a bet."""
    planned, direct, _ = costs("qwen", PLAIN, talks(12, 16))
    assert planned <= 0.9 * direct


@pytest.mark.parametrize("seed", [12, 33, 37, 69])
def test_tools_that_lie_in_an_automatic_cache_are_read_there(seed: int) -> None:
    """Qwen, conversations that share their tools and nothing that a mark could stand behind: the first write is all that may be lost."""
    planned, direct, dearest = costs("qwen", PLAIN, file(Random(seed), 4))
    assert planned <= 1.01 * direct + 0.25 * dearest


@given(st.integers(0, 1 << 32), st.sampled_from((PLAIN, GAPS, ONE_SHOT)), st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_long_lifetimes_lose_a_tenth_at_most(seed: int, family: Family, tools: int) -> None:
    """Kimi stores everything for minutes for nothing; an hour costs as much again. Without pauses none is ever bought."""
    planned, direct, _ = costs("kimi", family, file(Random(seed), tools))
    assert planned <= (1.1 if family is GAPS else 1.0) * direct


def test_long_lifetimes_pay_on_the_whole() -> None:
    """Of these thirty files most are too small for an hour to be bought; two save by it, one loses."""
    found = [costs("kimi", GAPS, file(Random(seed), (0, 1, 4)[seed % 3])) for seed in range(65, 95)]
    assert sum(planned for planned, _, _ in found) < sum(direct for _, direct, _ in found)
    assert sum(planned > 1.01 * direct for planned, direct, _ in found) <= 1
