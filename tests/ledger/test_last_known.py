"""Last known answers: marked with their time, bounded, and each scope its own."""
from __future__ import annotations

from datetime import datetime

from gateway.ledger.last_known import LastKnown

USAGE = ("usage", {"by": "model", "since": "7d"})


def test_an_answer_comes_back_with_its_time() -> None:
    """The latest one; the order of a question's words does not matter."""
    known = LastKnown()
    known.keep("alpha", USAGE, {"rows": [1]})
    known.keep("alpha", USAGE, {"rows": [1, 2]})
    found = known.find("alpha", ("usage", {"since": "7d", "by": "model"}))
    assert found is not None
    assert found["rows"] == [1, 2]
    assert datetime.fromisoformat(found["as_of"]).tzinfo is not None


def test_nobody_sees_what_another_scope_asked() -> None:
    known = LastKnown()
    known.keep(None, USAGE, {"rows": ["all"]})
    known.keep("alpha", USAGE, {"rows": ["alpha"]})
    assert known.find("beta", USAGE) is None
    assert known.find("alpha", ("call", {"by": "model", "since": "7d"})) is None
    assert (known.find("alpha", USAGE) or {})["rows"] == ["alpha"]


def test_what_was_not_asked_for_longest_goes_first() -> None:
    known = LastKnown(most_bytes=300)
    for n in range(3):
        known.keep("alpha", ("call", {"id": str(n)}), {"text": "x" * 80})
    known.find("alpha", ("call", {"id": "0"}))
    known.keep("alpha", ("call", {"id": "3"}), {"text": "x" * 80})
    there = [n for n in range(4) if known.find("alpha", ("call", {"id": str(n)}))]
    assert there == [0, 2, 3]
    known.keep("alpha", ("call", {"id": "4"}), {"text": "x" * 1_000})
    assert known.find("alpha", ("call", {"id": "4"})) is None
