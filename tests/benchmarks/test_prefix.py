"""The prefix benchmark's own parts: its bound is one, its traffic repeats, and a short run goes through."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import prefix_informed, prefix_traces
from benchmarks.prefix import FAMILIES, measure, prices_of, untouched
from benchmarks.prefix_chances import Chances, cut
from benchmarks.prefix_clairvoyant import Marked
from benchmarks.prefix_informed import by_all, by_others, informed
from benchmarks.prefix_oracle import Prices, bound, shared_bound
from benchmarks.prefix_traces import Call, Trace
from benchmarks.prefix_traffic import traffic
from benchmarks.providers.marked import MarkRules
from benchmarks.providers.prompt import Block, Prompt
from benchmarks.providers.rules import PROVIDERS, Automatic
from gateway.demo.sessions import Session

CLAUDE = Prices(read=0.1, writes={300.0: 1.25, 3600.0: 2.0})
LIVES = {"5m": 300.0, "1h": 3600.0}
SESSIONS = [
    Session(id=f"s{n}", tools=[{"type": "function", "function": {"name": f"t{k}", "description": "d" * 1000, "parameters": {"type": "object"}}} for k in range(4)],
            messages=[{"role": "system", "content": "rules " * 500}] + [{"role": ("user", "assistant")[k % 2], "content": f"{n} {k} " + "words " * 60} for k in range(9)],
            turns=[2, 4, 6, 8, 10])
    for n in range(3)
]  # fmt: skip


def one_block(*times_s: float) -> list[tuple[float, Prompt]]:
    return [(at_s, Prompt((Block(b"x", 2_000, None, 1, "messages"),))) for at_s in times_s]


@pytest.mark.parametrize(("times_s", "per_token"), [
    pytest.param((0,), 1.0, id="once: not stored"),
    pytest.param((0, 200), 1.35, id="soon again: five minutes"),
    pytest.param((0, 1000), 2.0, id="later again: an hour is too dear for one read"),
    pytest.param((0, 1000, 2000, 3000), 2.3, id="later again and again: an hour"),
    pytest.param((0, 9000), 2.0, id="too late for either"),
])  # fmt: skip
def test_the_bound_knows_the_future(times_s: tuple[float, ...], per_token: float) -> None:
    assert bound(one_block(*times_s), CLAUDE) == pytest.approx(2_000 * per_token)


@given(st.lists(st.floats(1, 8000), min_size=1, max_size=12))
def test_no_fixed_plan_beats_the_bound(gaps_s: list[float]) -> None:
    times, at_s = [], 0.0
    for gap_s in gaps_s:
        at_s += gap_s
        times.append(at_s)
    trace = Trace("t", tuple(Call(at_s, (("a", 1_500), (f"own {n}", 600))) for n, at_s in enumerate(times)))
    found = prefix_traces.regret(trace)
    assert found.bound <= min(found.oracle, found.planned, found.always_5m, found.always_1h, found.never) + 1e-6
    assert found.oracle <= min(found.always_5m, found.always_1h, found.never)


def test_knowing_chances_is_worth_no_more_than_knowing_the_future() -> None:
    """One conversation in five goes on: at 0.2 a write is not worth while, and who knows which one it is saves."""
    prompts = []
    for n in range(200):
        block = Block(b"%d" % n, 2_000, None, 1, "messages")
        prompts += [(n * 1e4 + 60.0 * k, Prompt((block,))) for k in range(2 if n % 5 == 0 else 1)]
    assert informed(prompts, CLAUDE) == pytest.approx(2_000 * 240)
    assert bound(prompts, CLAUDE) == pytest.approx(2_000 * (160 + 40 * 1.35))
    often = [(at_s, prompt) for at_s, prompt in prompts if prompt.blocks[0].digest in {b"%d" % n for n in range(0, 200, 5)}]
    assert informed(often, CLAUDE) == pytest.approx(2_000 * 40 * 1.35)


def test_what_others_show_is_less_than_what_is_known() -> None:
    """Each of two conversations asks for a piece of its own, one of them again: nobody else's shows that it will."""
    prompts = [(at_s, Prompt((Block(name, 2_000, None, 1, "messages"),))) for at_s, name in ((0, b"a"), (60, b"a"), (120, b"b"))]
    found = cut(prompts, 1_024, by_marks=True)
    costs = [prefix_informed.by_marks(prompts, found, CLAUDE, Marked(MarkRules(ttls=LIVES)), known) for known in (
        by_all([found], CLAUDE), by_others([found], [(0, 0, 1)], CLAUDE)(0))]  # fmt: skip
    assert costs == pytest.approx([2_000 * (1.25 + 0.1 + 1.25), 2_000 * (1 + 1 + 1.25)])
    shared = cut([(at_s, Prompt((Block(b"a", 2_000, None, 1, "messages"),))) for at_s in (0.0, 60.0)], 1_024, by_marks=True)
    kind = shared.uses[0][0].kind
    assert by_others([shared], [(0, 1)], CLAUDE)(0)(0).costs(kind) == by_all([shared], CLAUDE)(0).costs(kind)


def test_chances_of_other_days_count() -> None:
    """A day on which nothing comes again, known by one on which it does, is planned for what the other shows."""
    once, again = one_block(0.0), one_block(0.0, 60.0)
    chances = Chances(cut(again, 1_024, by_marks=True).pieces, CLAUDE)
    assert informed(once, CLAUDE) == pytest.approx(2_000)
    assert informed(once, CLAUDE, known=chances) == pytest.approx(2_000 * 1.25)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(1, 5000)), min_size=1, max_size=12))
def test_rules_are_kept_by_the_plan_that_knows_the_chances(asked: list[tuple[int, float]]) -> None:
    """Conversations that grow, with pauses: no mark is refused, and no plan is cheaper than the bound or counts other tokens."""
    prompts, at_s = [], 0.0
    for length, gap_s in asked:
        at_s += gap_s
        prompts.append((at_s, Prompt(tuple(Block(b"%d" % n, 1_500 * (n + 1), None, n + 1, "messages") for n in range(length + 1)))))
    found = cut(prompts, 1_024, by_marks=True)
    cost = prefix_informed.by_marks(prompts, found, CLAUDE, Marked(MarkRules(ttls=LIVES)), by_all([found], CLAUDE))
    assert bound(prompts, CLAUDE) <= cost + 1e-6
    kimi, cache = PROVIDERS["kimi"], PROVIDERS["kimi"].make()
    assert isinstance(cache, Automatic)
    prices = prices_of(kimi)
    text = [(at_s, Prompt(prompt.blocks, b"x" * 4 * prompt.tokens)) for at_s, prompt in prompts]
    found = cut(text, prices.minimum, by_marks=False)
    cost = prefix_informed.by_lifetime(text, found, prices, kimi.lives, cache.cache, by_all([found], prices))
    assert shared_bound(text, prices, 256) <= cost + 1e-6


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.floats(0, 9)), max_size=7))
def test_the_cheapest_ends_are_found(costs: list[tuple[float, float, float]]) -> None:
    def total(last: int, long: int) -> float:
        return sum(each[0 if n > last else 2 if n <= long else 1] for n, each in enumerate(costs))

    every = [total(last, long) for last in range(-1, len(costs)) for long in range(-1, last + 1)]
    assert total(*prefix_informed._ends(costs)) == pytest.approx(min(every))


def test_days_with_pauses_differ_and_are_summed() -> None:
    """Each day is sent to a gateway that knows nothing; a family without pauses has one."""
    gaps = next(family for family in FAMILIES if family.gaps)
    assert traffic(gaps, SESSIONS, day=1) != traffic(gaps, SESSIONS) == traffic(gaps, SESSIONS, day=0)
    plain, found = measure(SESSIONS, [PROVIDERS["kimi"]], [FAMILIES[0], gaps], days=2)
    assert (len(plain.days), len(found.days)) == (0, 2)
    days = [untouched(PROVIDERS["kimi"], traffic(gaps, SESSIONS, day=day), prices_of(PROVIDERS["kimi"]), gaps) for day in (0, 1)]
    assert found.untouched == sum(days)
    assert found.oracle <= found.untouched
    assert found.rules_aside is not None


def test_traffic_is_the_same_each_time_and_spoils_what_it_says() -> None:
    for family in FAMILIES:
        first, second = traffic(family, SESSIONS), traffic(family, SESSIONS)
        assert first == second
        assert [one.at_s for one in first] == sorted(one.at_s for one in first)
        assert (family.spoil is None) == all(one.body == one.clean for one in first)


@pytest.mark.parametrize("name", ["anthropic", "openai-5.6"])
def test_a_short_run_saves_most_of_what_can_be_saved(name: str) -> None:
    """Real gateway, simulated provider."""
    plain = [family for family in FAMILIES if family.name == "plain"]
    [found] = list(measure(SESSIONS, [PROVIDERS[name]], plain))
    assert found.requests == 15
    assert found.to_untouched < 1.01
    assert found.saving is None or found.saving > 0.9
    assert found.untouched == untouched(PROVIDERS[name], traffic(plain[0], SESSIONS), prices_of(PROVIDERS[name]), plain[0])


def test_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "mooncake_x.jsonl").write_text(json.dumps({"timestamp": 5, "input_length": 700, "output_length": 1, "hash_ids": [1, 2]}))
    (tmp_path / "azure_y.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    found = {trace.name: trace.calls for trace in prefix_traces.traces(tmp_path)}
    assert found["mooncake_x"] == (Call(0.005, (("1", 512), ("2", 188))),)
    assert found["azure_y x1"][0].blocks == (("system", 1_500), ("call 0", 3_308))
