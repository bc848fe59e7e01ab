"""One gateway and one scripted model server for all tests that need nothing of their own."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gateway.metering import prices
from tests.build import PLAIN, Gateway, backend
from tests.upstream import Site, Upstream

SITES = 400
HASTY = {"head": {"first_byte_timeout_ms": 500}, "rest": {"idle_timeout_ms": 700}}
"""What of an answer a hasty backend does not wait for; all others wait longer than any busy machine makes them."""
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _price_files_read_once() -> Iterator[None]:
    """Reading the shipped prices at each of a hundred starts would be half of the suite's time."""
    read, known = prices.read, {}

    def once(path: Path, name: str = "", **how: Any) -> Any:
        key = path, name, path.read_bytes() if path.is_file() else b"", tuple(how)
        if key not in known:
            known[key] = read(path, name, **how)
        return known[key]

    prices.read = once  # type: ignore[attr-defined]
    yield
    prices.read = read  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        yield server


@pytest.fixture(scope="session")
def sites(upstream: Upstream) -> dict[str, list[Site]]:
    """Sites by the dialect that their backend has in `gateway`."""
    names = {"openai": "o", "anthropic": "a"}
    return {dialect: [upstream.site(f"{letter}{n}") for n in range(SITES)] for dialect, letter in names.items()}


@pytest.fixture(scope="session")
def _hasty(upstream: Upstream) -> dict[tuple[str, str], list[Site]]:
    return {(dialect, what): [upstream.site(f"{dialect}-{what}-{n}") for n in range(20)] for dialect in ("openai", "anthropic") for what in HASTY}


@pytest.fixture(scope="session")
def gateway(
    sites: dict[str, list[Site]], _hasty: dict[tuple[str, str], list[Site]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """The shared gateway: a backend for each site, two teams. Tests get sites from `openai`, `anthropic`, `fresh` and `hasty`."""
    backends = {site.name: backend(site, dialect) for dialect, several in sites.items() for site in several}
    backends |= {site.name: backend(site, dialect, **HASTY[what]) for (dialect, what), several in _hasty.items() for site in several}
    policies = {"plain": PLAIN, "other": PLAIN, "drain": {**PLAIN, "hang_up": "drain"}, "narrow": {**PLAIN, "models": {"allow": ["m-o0"]}}}
    with Gateway(tmp_path_factory.mktemp("gateway"), {"backends": backends, "max_body_bytes": 1 << 20}, policies) as running:
        yield running


@pytest.fixture(scope="session")
def _fresh(sites: dict[str, list[Site]]) -> Callable[[str], Site]:
    unused = {dialect: iter(several[1:]) for dialect, several in sites.items()}
    return lambda dialect: next(unused[dialect])


@pytest.fixture(scope="session")
def hasty(_hasty: dict[tuple[str, str], list[Site]]) -> Callable[[str, str], Site]:
    """`hasty("openai", "head")`: a backend that is given up soon if its head, or after the head the `rest`, does not come."""
    unused = {which: iter(several) for which, several in _hasty.items()}
    return lambda dialect, what: next(unused[dialect, what])


@pytest.fixture
def openai(_fresh: Callable[[str], Site]) -> Site:
    """A backend of the shared gateway that speaks OpenAI and that no other test uses."""
    return _fresh("openai")


@pytest.fixture
def anthropic(_fresh: Callable[[str], Site]) -> Site:
    """A backend of the shared gateway that speaks Anthropic and that no other test uses."""
    return _fresh("anthropic")


@pytest.fixture
def fresh(_fresh: Callable[[str], Site]) -> Callable[[str], Site]:
    """`fresh("openai")`, for tests over both dialects."""
    return _fresh
