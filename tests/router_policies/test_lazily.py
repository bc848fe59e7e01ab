import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from router_policies.lazily import lazily


def test_a_module_is_read_when_it_is_first_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however many threads are the first; one that is not there is told at once."""
    slow = "import sys, time\nsys.tollway_reads += 1\ntime.sleep(0.05)\nanswer = 42\n"
    (tmp_path / "tollway_dear.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "tollway_reads", 0, raising=False)
    together = threading.Barrier(8)
    try:
        found = lazily("tollway_dear")
        assert sys.tollway_reads == 0  # type: ignore[attr-defined]
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: (together.wait(), found.answer)[1], range(8)))
        assert answers == [42] * 8
        assert sys.tollway_reads == 1  # type: ignore[attr-defined]
        assert lazily("tollway_dear") is found
        with pytest.raises(AttributeError, match="question"):
            _ = found.question
    finally:
        sys.modules.pop("tollway_dear", None)
        lazily.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="tollway_nowhere"):
        lazily("tollway_nowhere")
