"""What a decision is told of lanes: figures that were seen, and guesses where nobody has looked yet."""
from __future__ import annotations

from pathlib import Path

from gateway.backends.fleet import Fleet
from gateway.settings import resolve
from gateway.settings_file import File
from router_policies.types import Lane, Rates

LANES = {"fast": {"first_token_ms": 10, "ms_per_output_token": 10}, "standard": {"first_token_ms": 20, "ms_per_output_token": 40}}


def fleet() -> Fleet:
    backend = {"dialect": "openai", "url": "http://127.0.0.1:9/v1", "models": ["m"], "lanes": LANES}
    other = {"dialect": "openai", "url": "http://127.0.0.1:8/v1", "models": ["m"]}
    return Fleet(resolve(File.model_validate({"backends": {"own": backend, "other": other}}), Path("/tmp"), {}), lambda *_: Rates())


def lane(of: Fleet, key: str) -> Lane:
    of.stale()
    return next(one for one in of.snapshot() if one.key == key)


def answered(of: Fleet, key: str, total_s: float) -> None:
    """A streamed answer of 101 tokens, its first after 20 ms."""
    of.probes[key].answered(uncached_tokens=1, output_tokens=101, first_token_s=0.02, total_s=total_s)


def test_a_lane_that_nobody_has_seen_is_guessed_by_what_its_siblings_turned_out_to_be() -> None:
    """A tenth of the first guess on one lane of a backend: the other is thought to be ten times as quick as well; lanes of
    another backend are not, and what is seen of it counts at once."""
    of = fleet()
    before, foreign = lane(of, "own/fast").seconds_per_output_token, lane(of, "other/standard").seconds_per_output_token
    assert before == 0.01
    for _ in range(20):
        answered(of, "own/standard", 0.02 + 100 * 0.004)
    guessed = lane(of, "own/fast")
    assert abs(guessed.seconds_per_output_token - before / 10) < before / 100
    assert (guessed.samples, lane(of, "other/standard").seconds_per_output_token) == (0, foreign)
    answered(of, "own/fast", 0.02 + 100 * 0.02)
    assert lane(of, "own/fast").seconds_per_output_token > before
