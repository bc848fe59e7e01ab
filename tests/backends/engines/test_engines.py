"""Each engine's figures from an answer of its own, and what is sent to it: direction of priorities, salt, headers."""
from __future__ import annotations

from pathlib import Path

import pytest

from gateway.backends.engines import ENGINES, Capabilities, Intent, Sample, between
from gateway.backends.engines.prometheus import parse

WIRE = Path(__file__).parents[2] / "wire" / "engines"
ALL = Capabilities(cached_tokens=True, priority=True, salt=True, load=True)


def _body(name: str) -> bytes:
    return (WIRE / name).read_bytes()


@pytest.mark.parametrize(
    ("engine", "bodies", "want"),
    [
        pytest.param("vllm", {"/metrics": "vllm-0.33.txt"}, Sample(
            running=5, waiting=4, kv_used=0.375, prompt_tokens_total=1200, cached_tokens_total=640, preempted_total=1,
            refused_total=2, drafted_total=100, accepted_total=70), id="vllm sums its engines"),
        pytest.param("vllm", {"/metrics": "vllm-0.8.txt"}, Sample(
            running=1, waiting=0, kv_used=0.125, prompt_tokens_total=80, cached_tokens_total=16), id="vllm's old names"),
        pytest.param("sglang", {"/v1/loads?include=core": "sglang-loads.json", "/metrics": "sglang.txt"}, Sample(
            running=2, waiting=1, waiting_tokens=500, kv_used=0.375, prompt_tokens_total=2000, cached_tokens_total=600),
            id="sglang prefers its loads"),
        pytest.param("sglang", {"/metrics": "sglang.txt"}, Sample(
            running=2, waiting=5, kv_used=0.4, prompt_tokens_total=2000, cached_tokens_total=600), id="sglang without loads"),
        pytest.param("tensorrt-llm", {"/prometheus/metrics": "tensorrt-llm.txt"}, Sample(
            running=6, waiting=2, kv_used=0.9, prompt_tokens_total=100, cached_tokens_total=30), id="tensorrt-llm"),
        pytest.param("llama.cpp", {"/metrics": "llamacpp.txt", "/slots": "llamacpp-slots.json"}, Sample(
            running=1, waiting=2, kv_used=0.125), id="llama.cpp"),
        pytest.param("llama.cpp", {"/slots": "llamacpp-slots.json"}, Sample(running=1, kv_used=0.125), id="llama.cpp without metrics"),
        pytest.param("ray-serve-llm", {"/metrics": "ray.txt"}, Sample(running=5, waiting=0, kv_used=0.1), id="ray"),
        pytest.param("dynamo", {"/metrics": "dynamo.txt"}, Sample(running=7, waiting=3), id="dynamo"),
        pytest.param("llm-d", {}, Sample(), id="llm-d decides by itself"),
    ],
)  # fmt: skip
def test_figures_are_read(engine: str, bodies: dict[str, str], want: Sample) -> None:
    """What is not said stays None."""
    assert ENGINES[engine].read({path: _body(name) for path, name in bodies.items()}) == want


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe{", b"{}", b"[1, null]", b'vllm:num_requests_running{a="b 1', b"vllm:num_requests_running NaN\n"])
def test_garbage_says_nothing(engine: str, garbage: bytes) -> None:
    """A broken or foreign answer never raises and never turns into a 0."""
    told = ENGINES[engine]
    sample = told.read(dict.fromkeys(told.paths, garbage))
    assert (sample.running, sample.waiting, sample.cached_tokens_total) == (None, None, None)
    assert told.read(dict.fromkeys(told.paths, None)) == Sample()


@pytest.mark.parametrize(
    ("engine", "urgent", "nobody_waits"),
    [("vllm", -50, 50), ("embedded", -50, 50), ("ray-serve-llm", -50, 50), ("sglang", 20, 0), ("tensorrt-llm", 1.0, 0.0)],
)
def test_urgency_has_the_engines_own_direction(engine: str, urgent: float, nobody_waits: float) -> None:
    """vLLM serves lower numbers first, the others higher ones; no number is sent where the probe saw none taken."""
    for urgency, want in ((1.0, urgent), (0.0, nobody_waits)):
        assert ENGINES[engine].prepare(Intent(urgency=urgency), ALL)[0] == {"priority": want}
        assert ENGINES[engine].prepare(Intent(urgency=urgency), Capabilities())[0] == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_salt_goes_where_it_is_known(engine: str) -> None:
    """Under the engine's own field; vLLM's forbidden characters and length are kept."""
    fields, _ = ENGINES[engine].prepare(Intent(salt="team@a/b\\" + "x" * 200), Capabilities())
    if ENGINES[engine].salt_field is None:
        assert fields == {}
    elif engine in ("vllm", "ray-serve-llm", "llm-d"):
        assert fields["cache_salt"].startswith("team_a_b_x")
        assert len(fields["cache_salt"]) == 128
    else:
        assert fields["cache_salt"].startswith("team@a")


def test_a_router_is_told_class_and_team() -> None:
    """llm-d's picker reads objective and fairness id, under old and new names; odd characters do not reach a header."""
    _, headers = ENGINES["llm-d"].prepare(Intent(objective="interactive", team="søk"), ALL)
    assert dict(headers) == {
        b"x-gateway-inference-objective": b"interactive", b"x-llm-d-inference-objective": b"interactive",
        b"x-gateway-inference-fairness-id": b"sk", b"x-llm-d-inference-fairness-id": b"sk",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "hit_rate"),
    [
        pytest.param((100, 40), (300, 90), 0.25, id="by difference"),
        pytest.param((100, 40), (100, 40), None, id="nothing came"),
        pytest.param((100, 40), (50, 10), None, id="restarted"),
        pytest.param((None, None), (50, 10), None, id="not told before"),
    ],
)
def test_totals_become_rates(before: tuple[float, float], now: tuple[float, float], hit_rate: float | None) -> None:
    """A total that fell means a new process; that interval tells nothing."""
    samples = [Sample(prompt_tokens_total=prompt, cached_tokens_total=cached) for prompt, cached in (before, now)]
    assert between(samples[0], samples[1], 1.0).hit_rate == hit_rate
    assert between(None, samples[1], 1.0).hit_rate is None


def test_a_label_may_hold_anything() -> None:
    """Quotes, braces and spaces in a label do not move the value."""
    found = parse(rb'x_total{a="} 5 \" ",b="c"} 7 1700000000', ["x"])
    assert found.total("x") == 7
    assert found.total("x", b="c") == 7
    assert found.total("x", b="d") is None
