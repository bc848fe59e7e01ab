"""The settings file beside the gateway that it made: it is read at the start only, and whoever edits it is told to restart."""
from __future__ import annotations

import hashlib
from pathlib import Path

from gateway.settings_file import File
from router_policies import strict_yaml

_KEPT = "what it said at the start is in force"


def digest(file: Path | None) -> bytes | None:
    """Of what stands in it; None where there is no such file or it cannot be read."""
    try:
        return None if file is None else hashlib.sha256(file.read_bytes()).digest()
    except OSError:
        return None


class SettingsSource:
    """No thread inside: the gateway calls `look` about twice a second, in a thread."""

    def __init__(self, file: Path | None, in_force: bytes | None) -> None:
        """`in_force`: the digest of what was read at the start."""
        self._file, self._in_force = file, in_force
        self._seen = self._told = in_force
        self.warning: str | None = None
        """What is to be done for the file to be in force; None while it is."""

    def look(self) -> bool:
        """Whether the warning is new or gone. A change counts when two looks in a row see the same: not half-written files."""
        now = digest(self._file)
        settled, self._seen = now == self._seen, now
        if now == self._told or not settled:
            return False
        self._told = now
        self.warning = None if now == self._in_force else self._words(now)
        return True

    def _words(self, now: bytes | None) -> str:
        if self._file is None or now is None:
            return f"{self._file} is gone or cannot be read; {_KEPT}, and a restart would fail"
        try:
            strict_yaml.load(self._file, File)
        except strict_yaml.BadFile as error:
            return f"{self._file} has changed and is not valid; {_KEPT}, and a restart would fail: {error}"
        return f"{self._file} has changed; {_KEPT} until the gateway is restarted"
