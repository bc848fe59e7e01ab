"""Known holes in what is locked: `make audit`. Asks the advisory service of the package index, so it needs a network.

    python -m tests.audit PIP_AUDIT LOCK...

Exit status 1: a hole is known. Where the service cannot be asked it says so, loudly, and exits 0: no network is no hole, and
no clean bill either.
"""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_ONE_LOCK_S = 600
_ANSWER_S = "15"


class Verdict(NamedTuple):
    """Of one lock. `holes`: package, version, advisory."""

    asked: int
    unknown: int
    holes: tuple[str, ...]

    @property
    def text(self) -> str:
        if self.asked == self.unknown:
            return "NOT AUDITED: the advisory service cannot be asked from here, or knows none of the packages"
        rest = f", {self.unknown} that the service does not know" if self.unknown else ""
        return f"{self.asked - self.unknown} packages looked up{rest}; " + ("; ".join(self.holes) or "no known hole")


def verdict(document: Mapping[str, Any] | None) -> Verdict:
    """What pip-audit's JSON says; None: it wrote none, for it could not ask."""
    if document is None:
        return Verdict(0, 0, ())
    packages = document["dependencies"]
    holes = [f"{each['name']} {each['version']}: {hole['id']}" for each in packages for hole in each.get("vulns", ())]
    return Verdict(len(packages), sum("skip_reason" in each for each in packages), tuple(holes))


def audited(program: str, lock: Path) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [program, "-r", str(lock), "--require-hashes", "--disable-pip", "--timeout", _ANSWER_S, "-f", "json", "-o", str(out)]
        try:
            said = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True, timeout=_ONE_LOCK_S, check=False)
        except subprocess.TimeoutExpired:
            return verdict(None)
        if not out.exists():
            print(said.stderr[-300:], file=sys.stderr)
            return verdict(None)
        return verdict(json.loads(out.read_text()))


def main(program: str, *locks: str) -> int:
    found = {lock: audited(program, Path(lock)) for lock in locks}
    for lock, one in found.items():
        print(f"{lock}: {one.text}")
    return int(any(one.holes for one in found.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
