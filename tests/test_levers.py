"""Whole conversations are held out, each lever by itself, in the share that was asked for."""
from __future__ import annotations

from gateway.core import levers


def test_the_share_is_kept_and_the_draw_stands() -> None:
    names = [b"%d" % n for n in range(20_000)]
    drawn = [levers.held("normalize", "team", name, 0.02) for name in names]
    assert drawn == [levers.held("normalize", "team", name, 0.02) for name in names]
    assert 300 < sum(drawn) < 500
    assert not any(levers.held("normalize", "team", name, 0.0) for name in names[:100])
    assert all(levers.held("normalize", "team", name, 1.0) for name in names[:100])


def test_levers_and_domains_are_drawn_independently() -> None:
    names = [b"%d" % n for n in range(4_000)]
    both = sum(levers.held("one", "t", name, 0.5) and levers.held("two", "t", name, 0.5) for name in names)
    domains = sum(levers.held("one", "t", name, 0.5) and levers.held("one", "u", name, 0.5) for name in names)
    assert 850 < both < 1_150
    assert 850 < domains < 1_150


def test_who_said_nothing_is_not_drawn() -> None:
    assert not levers.held("normalize", "team", b"", 1.0)


def test_the_receipt_names_conversation_and_arms() -> None:
    assert levers.arms(b"\x01", {"normalize": True}) == {"pass": "arm", "place": "01", "held": {"normalize": True}}
