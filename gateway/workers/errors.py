"""Exceptions of the budgets that workers and house send each other with their figures."""
from __future__ import annotations

from typing import Any

import msgspec

from gateway.budgets import AlreadySettled, BudgetRule, Refused
from gateway.core.errors import BudgetExceeded
from gateway.workers.link import ErrorCodec


class FarRefused(Refused):
    """A budget at the house has no room for the call."""

    def __init__(self, text: str, rule: BudgetRule, spent_nanos: int, held_nanos: int, resets_us: int | None) -> None:
        BudgetExceeded.__init__(self, text)
        self.rule, self.spent_nanos, self.held_nanos, self.resets_us = rule, spent_nanos, held_nanos, resets_us


def _take_refused(text: str, detail: bytes) -> Exception:
    return FarRefused(text, *msgspec.msgpack.decode(detail, type=tuple[BudgetRule, int, int, int | None]))


def _give_refused(error: Refused) -> tuple[Any, ...]:
    return error.rule, error.spent_nanos, error.held_nanos, error.resets_us


CODECS = {
    "Refused": ErrorCodec(Refused, _give_refused, _take_refused),
    "AlreadySettled": ErrorCodec(AlreadySettled, lambda error: None, lambda text, _: AlreadySettled(text)),
}
