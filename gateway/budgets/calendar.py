"""What time it is at a shared store, and which windows its accounts are in."""
from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.budgets import Account
from gateway.budgets.windows import Window, window


class Calendar:
    """By the store's clock, as far as we know it."""

    def __init__(self) -> None:
        self._skew_us = 0
        """The store's clock less ours."""
        self._windows: dict[tuple[str, str], Window] = {}

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + self._skew_us

    def tell(self, now_us: int) -> None:
        """The store says what time it is; windows that are over there are forgotten."""
        self._skew_us = now_us - time.time_ns() // 1_000
        self._windows = {key: span for key, span in self._windows.items() if span.holds(now_us)}

    def window(self, account: Account) -> Window:
        key = account.rule.window, account.rule.timezone
        span = self._windows.get(key)
        if span is None:
            span = self._windows[key] = window(*key, self.now_us())
        return span

    def start_us(self, account: Account) -> int:
        """Of its window; 0 where that has no beginning."""
        return self.window(account).starts_us or 0

    def slots(self, accounts: Sequence[Account]) -> tuple[tuple[Account, int], ...]:
        return tuple([(account, self.start_us(account)) for account in accounts])
