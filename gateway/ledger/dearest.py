"""The dearest runs, or values of a tag, of which a ledger may hold millions.

Over few hours all of them are summed. Over more that would take too long, so the walk begins with those that cost most in their
whole time: within the slice none cost more than that, since no attempt costs less than nothing in the end. Once as many as are
wanted cost more within the slice than the next one ever did, no other can be among them.
"""
from __future__ import annotations

from dataclasses import replace

from gateway.ledger import rolled
from gateway.ledger.measures import Row
from gateway.ledger.reader import Reader
from gateway.ledger.rolled import Plan
from gateway.ledger.slices import Dimension, Slice

FEW_HOURS = 6
_MORE, _MOST_NAMES = 4, 2_000


def rows(reader: Reader, dimension: Dimension, part: Slice, found: Plan, most: int) -> list[Row]:
    """The dearest first; entries without a value are in none."""
    names = 2 * most
    while found.last - found.first > FEW_HOURS and names <= _MOST_NAMES:
        some, others = _walk(reader, dimension, part, found, names)
        if others is None or (len(some) >= most and (some[most - 1].cost_nanos or 0) >= others):
            return some[:most]
        names *= _MORE
    (all_of_them,) = reader.read_at(lambda now: [rolled.dearest_query(dimension, part, found, now, most)])
    return _sums(reader, dimension, part, found, [row[dimension.sql.name] for row in all_of_them])


def _walk(reader: Reader, dimension: Dimension, part: Slice, found: Plan, names: int) -> tuple[list[Row], int | None]:
    """Sums of so many values, of each team, model and lane that is asked for; and the most that another can have cost, None:
    there is no other."""
    new, *known = reader.read_at(lambda now: rolled.ever_dearest_queries(dimension, part, found, now, names))
    some = _sums(reader, dimension, part, found, [row["value"] for told in (new, *known) for row in told])
    cut = [of_one[-1]["nanos"] for of_one in known if len(of_one) == names]
    return some, sum(cut) if cut else None


def _sums(reader: Reader, dimension: Dimension, part: Slice, found: Plan, values: list[str]) -> list[Row]:
    some = replace(part, where={**part.where, dimension.name: list(dict.fromkeys(values))})
    (sums,) = reader.read_at(lambda now: [rolled.values_sums_query(dimension, some, found, now)])
    return [Row.of((dimension.text(row[dimension.sql.name]),), row) for row in sums]
