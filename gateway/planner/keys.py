"""`prompt_cache_key`: which machine of the provider a call should find its prefix on.

Calls with equal keys and equal beginnings go to one machine as long as they come no faster than about 15 a minute; what comes
faster overflows to machines that have nothing. So an app has one key while it is slow, and two, four, eight... when it is
fast: each conversation then keeps the key it began with. A key says nothing about who asks: it is a digest.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

PER_MINUTE = 12
"""What one key is trusted with; the provider's figure is about 15."""
_MINUTE_US = 60_000_000
_MOST_KEYS = 256


class CacheKeys:
    """Rates of apps and keys of conversations; bounded, oldest out first."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._rates: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()
        """App -> minute, calls in it so far, calls in the one before."""
        self._keys: OrderedDict[bytes, bytes] = OrderedDict()
        self.fresh: dict[bytes, bytes] | None = None

    def key(self, app: bytes, session: bytes, now_us: int) -> bytes:
        """The key of a conversation; `app` is the digest of what its conversations share."""
        rate = self._rate(app, now_us)
        known = self._keys.get(session)
        if known is None:
            many = 1
            while many * PER_MINUTE < rate and many < _MOST_KEYS:
                many *= 2
            place = int.from_bytes(blake2b(session, digest_size=4, key=app[:64]).digest()) % many
            known = b"tw-%s-%d" % (blake2b(app, digest_size=8).hexdigest().encode(), place)
            self._put(session, known)
            if self.fresh is not None:
                self.fresh[session] = known
        else:
            self._keys.move_to_end(session)
        return known

    def take(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Keys that other processes have given to conversations."""
        for session, known in pairs:
            self._put(session, known)

    def _put(self, session: bytes, known: bytes) -> None:
        self._keys[session] = known
        if len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def _rate(self, app: bytes, now_us: int) -> int:
        minute, calls, before = self._rates.pop(app, (0, 0, 0))
        now = now_us // _MINUTE_US
        if minute != now:
            calls, before = 0, calls if now == minute + 1 else 0
        self._rates[app] = (now, calls + 1, before)
        if len(self._rates) > self._most:
            self._rates.popitem(last=False)
        return max(calls + 1, before)
