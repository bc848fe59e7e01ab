"""Exceptions of the budgets that workers and house send each other with their figures."""
from __future__ import annotations

from typing import Any

import msgspec

from gateway.budgets import Account, AlreadySettled, Gate, Refused, StoreAway, TooFast
from gateway.core.errors import BudgetExceeded
from gateway.workers.link import ErrorCodec


class FarRefused(Refused):
    """A budget at the house has no room for the call."""

    def __init__(self, text: str, account: Account, spent_nanos: int, held_nanos: int, resets_us: int | None) -> None:
        BudgetExceeded.__init__(self, text)
        self.account, self.rule, self.status = account, account.rule, account.rule.status
        self.spent_nanos, self.held_nanos, self.resets_us = spent_nanos, held_nanos, resets_us


def _take_refused(text: str, detail: bytes) -> Exception:
    return FarRefused(text, *msgspec.msgpack.decode(detail, type=tuple[Account, int, int, int | None]))


def _give_refused(error: Refused) -> tuple[Any, ...]:
    return error.account, error.spent_nanos, error.held_nanos, error.resets_us


def _take_too_fast(_: str, detail: bytes) -> Exception:
    return TooFast(*msgspec.msgpack.decode(detail, type=tuple[Gate, int]))


CODECS = {
    "Refused": ErrorCodec(Refused, _give_refused, _take_refused),
    "TooFast": ErrorCodec(TooFast, lambda error: (error.gate, error.wait_us), _take_too_fast),
    "StoreAway": ErrorCodec(StoreAway, lambda error: error.why, lambda _, why: StoreAway(msgspec.msgpack.decode(why))),
    "AlreadySettled": ErrorCodec(AlreadySettled, lambda error: None, lambda text, _: AlreadySettled(text)),
}
