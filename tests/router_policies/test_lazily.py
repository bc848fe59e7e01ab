import sys

import pytest

from router_policies.lazily import lazily


def test_a_module_is_read_when_it_is_first_used(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the same one for whoever imports it afterwards; one that is not there is told at once."""
    (tmp_path / "tollway_dear.py").write_text("import sys\nsys.tollway_was_read = True\nanswer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "tollway_was_read", False, raising=False)
    try:
        found = lazily("tollway_dear")
        assert not sys.tollway_was_read  # type: ignore[attr-defined]
        assert found.answer == 42
        assert sys.tollway_was_read  # type: ignore[attr-defined]
        assert lazily("tollway_dear") is found
    finally:
        sys.modules.pop("tollway_dear", None)
    with pytest.raises(ModuleNotFoundError, match="tollway_nowhere"):
        lazily("tollway_nowhere")
