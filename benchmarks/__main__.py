"""Runs all benchmarks, one after the other."""
from __future__ import annotations

import subprocess
import sys

for name in ("gateway", "hang_up", "engine", "broker"):
    print(f"\n== benchmarks.{name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
