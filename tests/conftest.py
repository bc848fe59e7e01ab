"""One gateway and one scripted model server for all tests that need nothing of their own."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gateway.metering import prices
from tests.build import PLAIN, Gateway, backend
from tests.upstream import Site, Upstream

SITES = 400
settings.register_profile("untimed", deadline=None)
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
def _patient(upstream: Upstream) -> list[Site]:
    return [upstream.site(f"p{n}") for n in range(8)]


@pytest.fixture(scope="session")
def _patient_left(_patient: list[Site]) -> Iterator[Site]:
    return iter(_patient)


@pytest.fixture
def patient(_patient_left: Iterator[Site]) -> Site:
    """Like `openai`, with time-outs that no busy machine reaches: for tests of a hundred calls at once in one process."""
    return next(_patient_left)


@pytest.fixture(scope="session")
def gateway(sites: dict[str, list[Site]], _patient: list[Site], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The shared gateway: a backend for each site, two teams. Tests get sites from `openai` and `anthropic`."""
    backends = {
        site.name: backend(site, dialect, first_byte_timeout_ms=1500, idle_timeout_ms=700)
        for dialect, several in sites.items()
        for site in several
    }
    backends |= {site.name: backend(site, first_byte_timeout_ms=60_000, idle_timeout_ms=60_000) for site in _patient}
    policies = {"plain": PLAIN, "other": PLAIN, "drain": {**PLAIN, "hang_up": "drain"}, "narrow": {**PLAIN, "models": {"allow": ["m-o0"]}}}
    with Gateway(tmp_path_factory.mktemp("gateway"), {"backends": backends, "max_body_bytes": 1 << 20}, policies) as running:
        yield running


@pytest.fixture(scope="session")
def _fresh(sites: dict[str, list[Site]]) -> Callable[[str], Site]:
    unused = {dialect: iter(several[1:]) for dialect, several in sites.items()}
    return lambda dialect: next(unused[dialect])


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
