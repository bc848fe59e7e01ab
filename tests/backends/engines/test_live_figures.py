"""From a server's metrics to the probes of its lanes, over the transport that calls take."""
from __future__ import annotations

from pathlib import Path
from typing import get_args

import httpx

from gateway.backends.engines import ENGINES
from gateway.backends.engines.live import Live
from gateway.backends.fleet import Fleet
from gateway.backends.http import HttpxTransport
from gateway.settings import Settings
from gateway.settings_file import BackendSettings, EngineName, LaneSettings
from router_policies.types import Rates

METRICS = (Path(__file__).parents[2] / "wire" / "engines" / "vllm-0.33.txt").read_bytes()


def _settings(**engine: str) -> Settings:
    def backend(url: str, **more: str) -> BackendSettings:
        lanes = {"fast": LaneSettings(), "standard": LaneSettings()}
        return BackendSettings.model_validate({"dialect": "openai", "url": url, "models": ["m"], "lanes": lanes, **more})

    backends = {"own": backend("http://own:8000/v1", **engine), "other": backend("http://other/v1")}
    return Settings.model_construct(backends=backends, backend_keys={})


async def test_every_lane_of_the_backend_gets_its_load() -> None:
    """Asked at the server's root; other backends are left alone; an error leaves what was there to grow old."""
    asked: list[str] = []
    up = True

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200 if up else 503, stream=httpx.ByteStream(METRICS))

    settings = _settings(engine="vllm")
    fleet = Fleet(settings, lambda *_: Rates())
    live = Live(settings, fleet, HttpxTransport(httpx.MockTransport(answer)))
    assert set(live.watches) == {"own"}
    await live.look("own")
    assert asked == ["http://own:8000/metrics"]
    loads = {key: fleet.probes[key].load for key in fleet.targets}
    told = {target.backend: loads[key] for key, target in fleet.targets.items()}
    assert told["other"] is None
    assert told["own"] is not None
    assert (told["own"].running, told["own"].waiting, told["own"].kv_used) == (5, 4, 0.375)
    assert len({id(load) for load in loads.values()}) == 2, "one reading for all lanes of the backend"
    up = False
    await live.look("own")
    assert live.watches["own"].problem == "/metrics answered 503"


async def test_nothing_is_asked_where_no_engine_is_named() -> None:
    """Without `engine:` there is no watch and no task."""
    settings = _settings()
    live = Live(settings, Fleet(settings, lambda *_: Rates()), HttpxTransport(httpx.MockTransport(lambda _: httpx.Response(500))))
    live.start()
    assert live.watches == {}
    await live.close()


def test_the_names_in_the_settings_are_the_engines() -> None:
    """What the file may say and what there is are one list."""
    assert set(get_args(EngineName)) == set(ENGINES)
