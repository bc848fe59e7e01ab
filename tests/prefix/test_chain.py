"""Equal chains up to part k mean an equal prefix up to part k, within one team and model."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.prefix.chain import Chain, chain

PARTS = st.lists(st.binary(max_size=8), max_size=8)


def of(parts: list[bytes], domain: str = "team", model: str = "m") -> Chain:
    body, places = b"", []
    for part in parts:
        places.append((len(body), len(body) + len(part)))
        body += part
    return chain(domain, model, body, places)


@given(PARTS, PARTS)
def test_chains_agree_exactly_as_far_as_the_parts_do(one: list[bytes], two: list[bytes]) -> None:
    first, second = of(one), of(two)
    for k, (a, b) in enumerate(zip(first.digests, second.digests, strict=False)):
        assert (a == b) == (one[: k + 1] == two[: k + 1])


@given(PARTS)
def test_ends_are_lengths(parts: list[bytes]) -> None:
    assert of(parts).ends == tuple(sum(map(len, parts[: k + 1])) for k in range(len(parts)))


def test_teams_and_models_never_meet() -> None:
    """Nor do names that only look alike when they are joined."""
    chains = [of([b"x"], domain, model).digests for domain, model in [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("a", "c")]]
    assert len(set(chains)) == 5


def test_the_parts_borders_count() -> None:
    assert of([b"ab", b"c"]).digests[-1] != of([b"a", b"bc"]).digests[-1]


def test_a_conversation_keeps_its_name() -> None:
    """All turns share what came first; another first message is another conversation."""
    turns = [[b"system", b"hi"], [b"system", b"hi", b"yes?", b"more"]]
    assert of(turns[0]).session == of(turns[1]).session != of([b"system", b"ho"]).session
    assert of([]).session == ""
