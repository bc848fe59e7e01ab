"""Price files that are read again when one of them changes: a bad one changes nothing."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.metering.prices import PriceBook, load
from gateway.metering.rows import PriceFileError

_Signature = tuple[tuple[int, int, int], ...]


class PriceFiles:
    """The operator's files, and the book of all prices in force. No thread inside: the gateway calls `changed` about twice a
    second, in a thread, and gives the book what it finds."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises PriceFileError: a gateway does not start on a bad price file."""
        self._paths = tuple(paths)
        self._seen = self._tried = self._signature()
        self.book = load(self._paths)
        self.problem: str | None = None
        """Why the last change was refused; None when all is well."""

    def changed(self) -> PriceBook | None:
        """The prices as the files have them now; None if there is nothing new. A change is taken up when two looks in a row see
        the same: not half-written files. Raises PriceFileError, once for a change."""
        signature = self._signature()
        settled, self._seen = signature == self._seen, signature
        if signature == self._tried or not settled:
            return None
        self._tried = signature
        try:
            fresh = load(self._paths)
        except PriceFileError as error:
            self.problem = str(error)
            raise
        self.problem = None
        return fresh

    def _signature(self) -> _Signature:
        """Times and sizes: cheap to look at, and different after every write that matters."""
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
