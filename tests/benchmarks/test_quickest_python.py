"""Which interpreter `make setup` takes; the interpreters are scripts that answer the probe as they are told to."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.quickest_python import probe, quickest


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts an interpreter into a folder of the PATH, behind those that are there already."""
    folders: list[str] = []
    monkeypatch.setenv("PATH", "")

    def put(answer: str, name: str = "python3.11") -> str:
        folder = tmp_path / str(len(folders))
        folder.mkdir()
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{answer}\n")
        path.chmod(0o755)
        folders.append(str(folder))
        monkeypatch.setenv("PATH", ":".join(folders))
        return str(path)

    return put


def test_a_much_quicker_build_of_the_same_release_is_taken(install):
    install("print(3, 11, 1.0)")
    install("print(3, 11, 0.8)")
    best = install("print(3, 11, 0.7)")
    assert quickest("python3.11") == best


@pytest.mark.parametrize(
    "other",
    ["print(3, 11, 0.95)", "print(3, 12, 0.5)", "raise SystemExit('no module named ensurepip')", "print('odd')"],
    ids=["hardly quicker", "another release", "cannot make environments", "answers otherwise"],
)
def test_the_named_one_stays(install, other):
    install("print(3, 11, 1.0)")
    install(other)
    assert quickest("python3.11") == "python3.11"


def test_a_path_is_taken_as_it_is(install):
    slow = install("print(3, 11, 1.0)")
    install("print(3, 11, 0.5)")
    assert quickest(slow) == slow


def test_one_that_is_linked_to_twice_is_one(install, tmp_path):
    named = Path(install("print(3, 11, 1.0)"))
    Path(install("")).unlink()
    (tmp_path / "1" / "python3.11").symlink_to(named)
    assert quickest("python3.11") == "python3.11"


def test_nothing_of_that_name(install):
    assert quickest("python3.11") == "python3.11"


def test_a_real_one_answers():
    release, seconds = probe(sys.executable)
    assert release == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert seconds > 0
