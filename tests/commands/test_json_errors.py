"""What goes wrong under `--json` is JSON too: one object on standard error, nothing on standard output, the same exit status."""
from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from gateway.cli import main

NOBODY = ("--url", "http://127.0.0.1:9", "--key", "k")


@pytest.mark.parametrize(("argv", "status", "word"), [
    (("keys", "list", *NOBODY), 1, "no gateway answers"),
    (("report", "spend", *NOBODY), 1, "no gateway answers"),
    (("why", "call_1", *NOBODY), 1, "no gateway answers"),
    (("keys", "create", "--team", "a", "--budget", "-5", *NOBODY), 2, "is no budget"),
    (("keys", "create", *NOBODY), 2, "--team"),
    (("policy", "check", "nowhere"), 2, "nowhere"),
    (("prices", "show", "openai/gpt-5.55"), 1, "did you mean"),
    (("reconcile", "openai", "nowhere.csv"), 2, "nowhere.csv"),
    (("nosuch",), 2, "nosuch"),
])  # fmt: skip
def test_an_error_is_one_object(argv: tuple[str, ...], status: int, word: str) -> None:
    """The status is that of the same command without `--json`; the text is what people read."""
    plain, done = (CliRunner().invoke(main, [*argv, *more]) for more in ((), ("--json",)))
    assert (plain.exit_code, done.exit_code) == (status, status)
    error = json.loads(done.stderr)["error"]
    assert error["exit"] == status
    assert word in error["message"]
    assert error["message"] in plain.stderr
    assert done.stdout in ("", "[]\n")  # an empty list is an answer


def test_help_and_good_answers_stay() -> None:
    """Exit 0, and what is printed goes to standard output."""
    assert CliRunner().invoke(main, ["keys", "list", "--json", "--help"]).exit_code == 0
    done = CliRunner().invoke(main, ["prices", "show", "openai/gpt-5.5", "--json"])
    assert (done.exit_code, json.loads(done.stdout)[0]["model"]) == (0, "gpt-5.5")


def commands(command: click.Command, *words: str) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(words, command)]
    context = click.Context(command)
    subs = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [found for name, sub in subs if sub is not None for found in commands(sub, *words, name)]


def test_every_command_that_prints_data_has_json_and_help() -> None:
    """But those that run, and those that only do something to the database."""
    without = {("serve",), ("up",), ("db", "upgrade"), ("db", "downgrade")}
    found = commands(main)
    assert {words for words, command in found if not any("--json" in param.opts for param in command.params)} == without
    assert all(command.help for _, command in found)


@pytest.mark.parametrize("argv", [("config", "schema"), ("policy", "schema")])
def test_what_is_json_anyway_may_be_asked_for_as_json(argv: tuple[str, ...]) -> None:
    plain, asked = (CliRunner().invoke(main, [*argv, *more]) for more in ((), ("--json",)))
    assert (plain.exit_code, asked.exit_code) == (0, 0)
    assert json.loads(plain.stdout) == json.loads(asked.stdout)
