"""The C code of the native step, compiled on the machine that runs it and kept in the user's cache."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = [Path(__file__).with_name(name) for name in ("step.c", "attention.h", "product.h", "vectors.h")]
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", "-shared", "-fPIC")
_NEEDED = {"avx2", "fma", "f16c"}
_COMPILE_S = 120


class Unavailable(RuntimeError):
    """No native step here; the text says why."""


def library() -> ctypes.CDLL:
    """The compiled code, from the user's cache or made now."""
    features = _features()
    if not features >= _NEEDED:
        raise Unavailable(f"the processor lacks {', '.join(sorted(_NEEDED - features))}")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    parts = [*(source.read_bytes() for source in _SOURCES), " ".join((*_FLAGS, *sorted(features))).encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tollway"
    except RuntimeError as error:
        raise Unavailable(f"no folder to keep the compiled code in: {error}") from error
    path = folder / f"step-{key}.so"
    if not path.exists():
        if compiler is None:
            raise Unavailable("there is no C compiler (cc, gcc or clang)")
        _compile(compiler, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path.name} does not load: {error}") from error


def _compile(compiler: str, path: Path) -> None:
    """Into place in one move: two processes may do this at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [*compiler.split(), *_FLAGS, str(_SOURCES[0]), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
            if done.returncode:
                raise Unavailable(f"{compiler} fails: {done.stderr.strip()[-300:]}")
            made.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"compiling fails: {error}") from error


def _features() -> set[str]:
    """What the processor can do, as Linux names it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
