"""The scripts of `lua/` as the server knows them: each with `common.lua` before it, called by its hash."""
from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")


@cache
def texts() -> dict[str, str]:
    """Script name -> its whole text."""
    common = (_FOLDER / "common.lua").read_text(encoding="utf-8")
    files = sorted(path for path in _FOLDER.glob("*.lua") if path.stem != "common")
    return {path.stem: common + path.read_text(encoding="utf-8") for path in files}


@cache
def digest(name: str) -> str:
    """What `EVALSHA` takes for that script."""
    return hashlib.sha1(texts()[name].encode()).hexdigest()
