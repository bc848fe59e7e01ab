"""A running gateway whose settings file is edited goes on as it was, and says so wherever an operator looks."""
from __future__ import annotations

from pathlib import Path

from tests.build import PLAIN, Process, backend, chat_answer, chat_body
from tests.upstream import Upstream, until, whole


def test_an_edited_settings_file_is_told_until_it_is_put_back(upstream: Upstream, tmp_path: Path) -> None:
    """Readiness stays as it is: the old settings serve. Note, metric and log name the file."""
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    with Process(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN}) as process:
        file = tmp_path / "tollway.yaml"
        before = file.read_text()

        def notes() -> list[str]:
            return process.ask("GET", "/readyz").json()["notes"]

        def changed() -> bool:
            return "tollway_settings_changed 1.0" in process.http.get(process.url + "/metrics").text

        assert (notes(), changed()) == ([], False)
        file.write_text(before + "\n# a remark\n")
        told = until(notes, "the change to be noticed")
        assert str(file) in told[0]
        assert "restarted" in told[0]
        assert changed()
        assert process.ask("GET", "/readyz").status_code == 200
        assert process.chat(chat_body(site.model)).status_code == 200
        assert "has changed" in process.text()
        file.write_text(before)
        until(lambda: not notes(), "the note to go")
        assert not changed()
