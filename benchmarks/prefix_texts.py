"""Text that spoils prompts, in words that no pattern of the gateway's was written for: what is learnt has to cure it.

Each function gives one text of several kinds; `app` chooses the kind, so that a conversation keeps its own.
"""
from __future__ import annotations

import random

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty", "knoll", "larch", "mesa")
_HOURS = ("twelve", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
_MOODS = ("ruhig", "zügig", "gründlich", "knapp")
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_DAY_MS, _MIDNIGHT_MS = 86_400_000, 1_796_050_000_000


def clock(rng: random.Random, app: int) -> str:
    """The time, in six forms and three languages."""
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    return _one_of(
        app,
        f"Stand: 30.11.2026 {hour}:{minute:02} Uhr (Europe/Berlin)",
        f"Mon, 30 Nov 2026 {hour:02}:{minute:02}:{second:02} +0000",
        f"<now epoch_ms='{_MIDNIGHT_MS + rng.randrange(_DAY_MS)}'/>",
        f"Il est {hour} h {minute:02}, nous sommes le lundi 30 novembre.",
        f"It is {_HOURS[hour % 12]} {('o clock', 'fifteen', 'thirty')[minute % 3]} where the user lives.",
        f'{{"clock": "{hour % 12 + 1}:{minute:02} {("AM", "PM")[hour // 12]}", "tz": "PST"}}',
    )


def nonce(rng: random.Random, turn: int, app: int) -> str:
    """A token without a label that says so."""
    token = f"{rng.getrandbits(64):016x}"
    return _one_of(
        app, f"<!-- build {token} -->", f"[ref {token[:8]}]", f"_tok={token.translate(_LETTERS)}", f"conv/{turn}/{token[:6]}",
        f"Ticket {rng.choice(_WORDS)}-{rng.choice(_WORDS)}-{rng.choice(_WORDS)}",
    )  # fmt: skip


def repository(rng: random.Random, turn: int, app: int) -> str:
    """What is changed in a work tree: another number of lines each time."""
    files = [f"src/{rng.choice(_WORDS)}/{rng.choice(_WORDS)}.rs" for _ in range(1 + turn % 5)]
    modified = [f"  modified: {name}" for name in files]
    return _one_of(
        app,
        "\n".join(["<repository>", f"on {rng.choice(_WORDS)}-fix, {len(files)} dirty", *files, "</repository>"]),
        "\n".join(["Work tree:", *modified, f"HEAD is {rng.getrandbits(28):07x} ({rng.choice(_WORDS)})"]),
        f"{len(files)} uncommitted, ahead by {turn}: " + ", ".join(files),
    )


def tail(rng: random.Random, turn: int, app: int) -> str:
    """What an app adds to its prompt for this step."""
    word, other = rng.choice(_WORDS), rng.choice(_WORDS)
    return _one_of(
        app, f"Focus on {word} now.", f"Budget left: {20_000 - 700 * turn - rng.randrange(500):,} of 20,000 tokens",
        f"Plan\n- {word} first\n- then {other}\n- {turn} done", f"Stimmung: {rng.choice(_MOODS)}",
        f"{word.capitalize()} is what the last reviewer asked for, and {other} can wait.",
    )  # fmt: skip


def _one_of(app: int, *kinds: str) -> str:
    return kinds[app % len(kinds)]
