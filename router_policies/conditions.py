"""A rule's `when`: -> one function from an Ask to true or false.

A CEL expression is compiled, its names checked and tried once at load. While it runs, anything but true or false (a key
that is not there, a wrong type) raises RuleFailed: such a rule does not match, and the decision says that it failed.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from router_policies.globs import Glob
from router_policies.lazily import lazily
from router_policies.problems import did_you_mean
from router_policies.rules import RuleFailed
from router_policies.types import Ask

if TYPE_CHECKING:
    from router_policies.schema import When

cel = lazily("cel")  # brings a command line of its own along, which no start needs

MAX_EXPRESSION = 500
MAX_MACROS = 2
MAX_TRIAL_S, MAX_FULL_S = 0.005, 0.01
_MACROS = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(")
_TEXTS = re.compile(r"""[rRbB]?("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""")

Condition = Callable[[Ask], bool]
Value = Callable[[Ask], Any]

NAMES: Mapping[str, Value] = {
    "headers": lambda ask: ask.headers,
    "path": lambda ask: ask.path,
    "model": lambda ask: ask.model,
    "stream": lambda ask: ask.stream,
    "tags": lambda ask: ask.tags,
    "client": lambda ask: ask.client,
    "project": lambda ask: ask.project,
    "tools": lambda ask: ask.has_tools,
    "prompt_bytes": lambda ask: ask.prompt_bytes,
    "hour": lambda ask: ask.hour,
}
_TRIAL = Ask(team="trial", model="model", client="client", prompt_bytes=1_000)
_FULL = Ask(
    team="trial", model="m" * 200, client="c" * 300, prompt_bytes=1_000, path="/" + "p" * 200,
    headers={f"x-header-{n}": "h" * 300 for n in range(100)}, tags={f"tag-{n}": "t" * 100 for n in range(20)},
)  # fmt: skip
"""As much as a client may send: what it costs to look at all of it is what a client can make a rule cost."""


class BadCondition(Exception):
    """Why an expression cannot be used, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def matchers(when: When, aliases: Mapping[str, str]) -> Condition:
    """All that is given must hold. An empty one is refused: it would be the default class under another name."""
    checks: list[Condition] = []
    for name, pattern in when.header.items():
        checks.append(_pair(lambda ask: ask.headers, name.lower(), Glob(pattern)))
    for name, pattern in when.tag.items():
        checks.append(_pair(lambda ask: ask.tags, name, Glob(pattern)))
    if when.path is not None:
        checks.append(_text(lambda ask: ask.path, Glob(when.path)))
    if when.project is not None:
        checks.append(_text(lambda ask: ask.project, Glob(when.project)))
    if when.client is not None:
        checks.append(_text(lambda ask: ask.client, Glob(when.client)))
    if when.model is not None:
        checks.append(_model(Glob(when.model), aliases))
    if when.stream is not None:
        checks.append(_flag(lambda ask: ask.stream, when.stream))
    if when.tools is not None:
        checks.append(_flag(lambda ask: ask.has_tools, when.tools))
    if not checks:
        raise BadCondition("says nothing, so it would match every call", "use `default_class`, or `path: '*'`")
    return checks[0] if len(checks) == 1 else lambda ask: all(check(ask) for check in checks)


def _pair(pairs: Callable[[Ask], Mapping[str, str]], name: str, glob: Glob) -> Condition:
    def check(ask: Ask) -> bool:
        value = pairs(ask).get(name)
        return value is not None and glob.matches(value)

    return check


def _text(text: Callable[[Ask], str], glob: Glob) -> Condition:
    return lambda ask: glob.matches(text(ask))


def _model(glob: Glob, aliases: Mapping[str, str]) -> Condition:
    return lambda ask: glob.matches(ask.model) or glob.matches(aliases.get(ask.model, ask.model))


def _flag(flag: Callable[[Ask], bool], wanted: bool) -> Condition:
    return lambda ask: flag(ask) == wanted


def expression(text: str) -> Condition:
    """A CEL expression as a condition. Raises BadCondition."""
    _check_size(text)
    try:
        program = cel.compile(text)
    except ValueError as error:
        raise BadCondition(f"is not a CEL expression: {_first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise BadCondition("is not a CEL expression") from None
    used = [name for name in NAMES if name in program.variables()]
    bound = set(re.findall(r"\.\s*\w+\s*\(\s*(\w+)\s*,", text))  # loop variables of macros
    for name in program.variables():
        if name not in NAMES and name not in bound:
            raise BadCondition(f"uses `{name}`, which is not known", did_you_mean(name, NAMES))
    values = {name: _narrowed(name, text) if name in ("headers", "tags") else NAMES[name] for name in used}
    _try_out(program, values)

    def check(ask: Ask) -> bool:
        result = _run(program, values, ask)
        if not isinstance(result, bool):
            raise RuleFailed("is not true or false")
        return result

    return check


def _check_size(text: str) -> None:
    if len(text) > MAX_EXPRESSION:
        raise BadCondition(f"is longer than {MAX_EXPRESSION} characters", "split it into several rules")
    if len(_MACROS.findall(_TEXTS.sub("''", text))) > MAX_MACROS:
        raise BadCondition(f"has more than {MAX_MACROS} of all, exists, map and filter", "split it into several rules")


def _narrowed(name: str, text: str) -> Value:
    """Headers or tags, only those that the expression names if it names each: handing over a big mapping costs 5 us a key."""
    literal = r"""["']([^"'\\]+)["']"""
    named = rf"""{literal}\s+in\s+{name}\b(?!\s*[.\[])|\b{name}\s*\[\s*{literal}\s*\]|\b{name}\s*\.\s*(\w+)(?!\w|\s*\()"""
    found = [next(filter(None, groups)) for groups in re.findall(named, text)]
    if name == "headers" and any(key != key.lower() for key in found):
        raise BadCondition("names a header in upper case, but all header names are lower case here")
    if len(found) < len(re.findall(rf"\b{name}\b", text)):
        return NAMES[name]
    keys = frozenset(found)
    pairs = NAMES[name]
    return lambda ask: {key: value for key, value in pairs(ask).items() if key in keys}


def _run(program: Any, values: Mapping[str, Value], ask: Ask) -> Any:
    context = cel.Context(variables={name: value(ask) for name, value in values.items()})
    try:
        return program.execute(context)
    except Exception as error:
        raise RuleFailed(type(error).__name__) from error
    except BaseException as error:  # a panic of the library is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise RuleFailed("panic") from None


def _try_out(program: Any, values: Mapping[str, Value]) -> None:
    """One trial run finds what compiling does not: unknown functions, mixed types, no yes or no, too much work."""
    try:
        result = _run(program, values, _TRIAL)
    except RuleFailed as failed:
        _explain_failure(failed.__cause__)
        result = True
    if not isinstance(result, bool):
        raise BadCondition("must come out as true or false", "compare it with something: model == 'x'")
    for asked, most_s, of in ((_TRIAL, MAX_TRIAL_S, ""), (_FULL, MAX_FULL_S, " where a client sends 100 headers")):
        if _took_s(program, values, asked, most_s) > most_s:
            raise BadCondition(f"takes longer than {most_s * 1000:.0f} ms{of}", "simplify it")


def _took_s(program: Any, values: Mapping[str, Value], asked: Ask, most_s: float) -> float:
    """The quickest of three runs, in time of the processor; of one that is far too slow the first."""
    quickest = float("inf")
    for _ in range(3):
        start = time.thread_time()
        with contextlib.suppress(RuleFailed):
            _run(program, values, asked)
        quickest = min(quickest, time.thread_time() - start)
        if not most_s < quickest < 10 * most_s:
            break
    return quickest


def _explain_failure(cause: BaseException | None) -> None:
    if isinstance(cause, KeyError | IndexError):
        return  # a header or tag that the trial does not have
    if isinstance(cause, TypeError):
        raise BadCondition("compares or adds values of different types", "hour and prompt_bytes are whole numbers")
    raise BadCondition(f"cannot be worked out: {_first_line(cause)}")


def _first_line(error: BaseException | None) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else "unknown reason"
    line = line.split("<input>:", 1)[-1]
    return "".join(c if c.isprintable() else "?" for c in line)[:160]
