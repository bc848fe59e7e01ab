"""Names of what is made here: sortable by time, unguessable in their second half."""
from __future__ import annotations

import os


def new_id(prefix: str, at_us: int) -> str:
    """`at_us`: when, microseconds since the epoch."""
    return f"{prefix}{at_us // 1_000:011x}{os.urandom(8).hex()}"
