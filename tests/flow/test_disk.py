"""The gateway while its journal's disk is full or broken: answers under way settle, new calls get 503, then it goes on."""
from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import PLAIN, Process, backend, chat_answer, chat_body, chat_stream
from tests.upstream import PATIENCE_S, Gate, Site, Upstream, stream, until, whole


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    return upstream.site(tmp_path.name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The journal's folder as a file system of 128 MiB."""
    folder = tmp_path / "data" / "journal"
    folder.mkdir(parents=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "none", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", 0) as out:
        while True:
            out.write(bytes(1 << 20))


def test_a_full_disk_stops_new_calls_and_nothing_else(small_disk: Path, tmp_path: Path, site: Site) -> None:
    """C18: streams in flight end well and are booked, new calls get 503 `journal_full`, /readyz names it; it resumes by itself."""
    gate = Gate()
    with Process(tmp_path, {"backends": {"b": backend(site)}, "durability": "power"}, {"plain": PLAIN}) as process:
        site.says(stream(*chat_stream()[:3], gate, *chat_stream()[3:]))
        got: list[bytes] = []
        body = chat_body(site.model, stream=True, stream_options={"include_usage": True})
        threads = [threading.Thread(target=lambda: got.append(process.chat(body).content)) for _ in range(5)]
        process.key()
        for thread in threads:
            thread.start()
        site.wait_for(5)
        ballast, spare = small_disk / "ballast", next(small_disk.glob("*.spare"))
        os.truncate(spare, 0)                       # a part of the reserve is lost,
        fill(ballast)
        spare.unlink()                              # and there is no room to make it again
        site.says(whole(chat_answer()))
        until(lambda: code(process, site) == "journal_full", "calls to be refused")
        ready = process.http.get(process.url + "/readyz")
        assert (ready.status_code, ready.json()["mode"]) == (503, "stop")
        gate.open()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert got == [b"".join(chat_stream())] * 5
        ballast.unlink()
        until(lambda: process.chat(chat_body(site.model)).status_code == 200, "calls to be taken again")
        assert process.http.get(process.url + "/readyz").json()["mode"] == "normal"
        assert process.attempts(site)["ok"] >= 6


def test_a_disk_that_does_not_sync_gives_out_no_answer(tmp_path: Path, site: Site) -> None:
    """C19: EIO from every fdatasync: what was answered in full before is booked, later answers end in an error, calls are refused
    and the cause is named; when the disk takes syncs again, calls go on."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    with Process(tmp_path, {"backends": {"b": backend(site)}, "durability": "power"}, {"plain": PLAIN}) as process:
        site.says(whole(chat_answer()))
        good = {process.chat(chat_body(site.model)).headers["x-tollway-call"] for _ in range(5)}
        gate = Gate()
        site.says(stream(*chat_stream()[:3], gate, *chat_stream()[3:]), whole(chat_answer()))
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(process.chat(chat_body(site.model, stream=True)).content))
        thread.start()
        site.wait_for(6)
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO", "-p", str(process.process.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until(lambda: traced(process.process.pid) or tracer.poll() is not None, "strace")
            if tracer.poll() is not None:
                pytest.skip("strace may not attach here")
            first = process.chat(chat_body(site.model))
            assert (first.status_code, first.json()["error"]["code"]) == (503, "journal_unavailable")
            gate.open()
            thread.join(PATIENCE_S)
            assert b"[DONE]" not in got[0]
            assert b'"error"' in got[0]
            until(lambda: code(process, site) == "journal_full", "the stop")
            ready = process.http.get(process.url + "/readyz")
            assert (ready.status_code, ready.json()["mode"]) == (503, "stop")
            assert "Input/output error" in ready.text
        finally:
            tracer.terminate()
            tracer.wait(PATIENCE_S)
        until(lambda: process.chat(chat_body(site.model)).status_code == 200, "calls to be taken again")
        process.kill()
        process.start()
        rows = process.ask("GET", f"/tollway/usage?by=call_id&model={site.model}").json()["rows"]
        assert good <= {row["call_id"] for row in rows}
        assert all(row["attempts"] == 1 for row in rows)


def code(process: Process, site: Site) -> str:
    """What a call is refused with."""
    answer = process.chat(chat_body(site.model))
    return "" if answer.status_code == 200 else str(answer.json()["error"]["code"])


def traced(pid: int) -> bool:
    """Whether every thread of the process is being traced."""
    states = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all("TracerPid:\t0\n" not in state for state in states)
