"""Text that changes from call to call by its nature: clocks, ids, counters, nonces, the state of a repository.

A line is known by what it says of itself (a label and a value); a bare date or number is not enough, for an app may send it
for ever. Lines that only show by changing are learnt (`normalize/apps.py`), by their skeleton: the words of the line without
its numbers, ids, days and paths.

A new prompt has hundreds of lines, so they are looked at together: a few passes over all bytes tell which lines may have
something to tell, and a pattern is tried only on a line that has its words.
"""
from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_DATE = (
    r"(?:\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[./]\d\d?[./]\d{4}"
    rf"|{_MONTH}\s+\d\d?(?:st|nd|rd|th)?,?\s+\d{{4}}|\d\d?\.?\s+{_MONTH}\s+\d{{4}})"
)
_TIME = r"(?:\d\d?:\d\d(?::\d\d)?)"
_EPOCH = r"(?:\b1[5-9]\d{8}(?:\d{3})?\b)"
_HEX = r"(?:\b(?=[0-9a-f]*\d)[0-9a-f]{7,64}\b)"
_UUID = r"(?:\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)"
_OF = (
    "request", "req", "trace", "span", "session", "conversation", "correlation", "message", "run", "job", "invocation",
    "execution",
)  # fmt: skip
_STATE = r"(?:git ?status|current branch|head(?: commit)?|latest commit|commit hash|working tree)"
_LISTED = r"(?:git ?status|status|recent commits|changed files|modified files|untracked files|git log|git diff)"


def _set(*words: str) -> frozenset[str]:
    return frozenset(words)


def _any(*texts: str) -> re.Pattern[bytes]:
    return re.compile("|".join(texts).encode())


_DAYS = _set(
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
    "mon", "tue", "wed", "thu", "fri", "sat", "sun",
)  # fmt: skip
_VARYING = _DAYS | _set(
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december",
    "am", "pm",
)  # fmt: skip
_CLOCK, _SECONDS = re.compile(rb"\d:\d\d"), re.compile(rb"1[5-9]\d{8}")
"""One of them is in every line that tells the time."""
_NOWS = re.compile(rb"\b(?:current|today|now|timestamp|as of|date ?time|clock|time)\b")
_BEFORE_TIME = 48
"""Within how many bytes before a time what says that it is now."""
_TIME_FIRST = _any(rf"\W*(?:{_DATE}[t ]{_TIME}|{_EPOCH}\W*$)")
_EPOCH_DIGITS, _DATE_DIGITS = 10, 5
_BY_WORDS: tuple[tuple[str, frozenset[str], re.Pattern[bytes]], ...] = (
    ("date", _set("today", "todays", "current", "date", "day"), _any(
        rf"\b(?:today|today'?s|current|date|day)\b.{{0,30}}?(?:{_DATE}|\b{_DAY}\b)",
    )),
    ("nonce", _set("nonce", "cache", "cachebust", "cachebuster", "cachebusting", "salt", "random"), _any(
        r"\b(?:nonce|cache[ _-]?bust(?:er|ing)?|salt|random seed)\b\s*[:=#]?\s*\S*\d",
    )),
    ("id", _set("id", "uuid", "key", *[f"{of}{id}" for of in _OF for id in ("id", "uuid", "key")]), _any(
        rf"\b(?:{'|'.join(_OF)})[ _-]?(?:id|uuid|key)\b\s*[:=#]?\s*\S*\d",
    )),
    ("git", _set("git", "gitstatus", "branch", "head", "commit", "tree"), _any(
        rf"\b{_STATE}\b\s*(?:[:=]|is\b)", rf"\bcommit\b\s*[:=]?\s*{_HEX}",
    )),
)  # fmt: skip
"""(kind, words of which a line must have one, its pattern), in lower case."""
_TELLING = frozenset[str]().union(*[words for _, words, _ in _BY_WORDS])
_COUNTED = _set(
    "request", "turn", "step", "message", "attempt", "iteration", "call", "counter", "token", "tokens",
)  # fmt: skip
_TALKATIVE = _VARYING | _TELLING | _COUNTED
"""A line with none of them has nothing but its digits to tell."""
_BEFORE_NUMBER = _COUNTED | _set("used", "left", "remaining", "no", "number", "count")
_COUNT = r"(?:request|turn|step|message|attempt|iteration|call|counter|tokens?(?: used| left| remaining)?)"
_COUNTER = _any(
    rf"\b{_COUNT}\s*(?:no\.?|number|count|#|:|=)+\s*\d+",
    rf"\b(?:you are|you're|we are|we're|currently|this is)\b.{{0,20}}\b{_COUNT}\s+\d+",
)
_IDS = _any(_UUID)
_SIGNS = (b"day", b" is")
_STATES = re.compile("day|git|branch|commit|status|ed files|head|tree")
"""Of what makes a line without digits tell something, if it names a day, has a colon or the like, or says what something is."""
_HEADING = re.compile(rf"^\W*{_LISTED}\W*:\s*$".encode())
MASKED = re.compile("|".join((
    _UUID, r"(?:/[\w.\-]+){2,}/?", _HEX, r"\d+(?:[.:,]\d+)*", rf"\b{_DAY}\b", rf"\b{_MONTH}\b", r"\b[AP]M\b",
    r"\b[A-Za-z0-9_\-]*\d[A-Za-z0-9_\-]*\b",
)), re.IGNORECASE)  # fmt: skip
"""Words that vary, with their places, in a line that is known to have changed."""
_PATH = re.compile(rb"(?:/[\w.\-]+){2,}/?")
_ORDINAL = re.compile(rb"\s*\d+[.)]\s")
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+(?=[A-Z(\[])")
_LONG_LINE, _LONGEST = 200, 2_000
NAMES = "I"
"""Type of the array of lines' names."""
_FOLDS = bytes(
    48 if 48 <= byte <= 57 else byte + 32 if 65 <= byte <= 90 else byte if byte == 10 or 97 <= byte <= 122 or byte > 127 else 32
    for byte in range(256)
)  # fmt: skip
_UNMARKED = bytes(byte for byte in range(256) if byte not in b"0123456789/:=\n")


class Told(NamedTuple):
    """What there is to say of a line. `bare`: name of its skeleton, 0 if nothing in it varies. `kind`: what it says that will
    not stay, None if it does not say so itself. `heading`: the state of a repository follows, up to the next blank
    line."""

    bare: int
    kind: str | None
    heading: bool


class Described(NamedTuple):
    """Lines of a text. `names`: the same in all processes, line ends aside; two lines of one name cost a cache hit, never a
    word. `told`: by index, of those lines of which there is something to say."""

    names: array[int]
    told: Mapping[int, Told]


def described(lines: Sequence[str]) -> Described:
    """A line has no line end but its own. About half a microsecond for a line without digits, two to five for
    one with them."""
    if not lines:
        return Described(array(NAMES), {})
    raw = _joined(lines).encode("utf-8", "surrogatepass")
    low = raw.translate(_FOLDS)
    each, texts, marks = raw.split(b"\n"), low.decode("latin-1").split("\n"), raw.translate(None, _UNMARKED).split(b"\n")
    told = {}
    for n in _suspects(low, texts, marks):
        found = _told(each[n], texts[n], marks[n])
        if found is not None:
            told[n] = found
    return Described(array(NAMES, map(crc32, each)), told)


def _joined(lines: Sequence[str]) -> str:
    """One line end between any two."""
    text = "".join(lines)
    ended = text.count("\n")
    if ended == len(lines):
        return text[:-1]
    if ended == len(lines) - 1 and not lines[-1].endswith("\n"):
        return text
    return "\n".join([line.rstrip("\n") for line in lines])


def _folded(raw: bytes) -> str:
    """In lower case, a nought for every digit, a blank for what is no word."""
    return raw.translate(_FOLDS).decode("latin-1")


def _suspects(low: bytes, texts: Sequence[str], marks: Sequence[bytes]) -> set[int]:
    """Lines with digits or a path, and those that may tell something without."""
    found = set[int]()
    for n in [n for n, mark in enumerate(marks) if mark and mark != b"/"]:
        mark = marks[n]
        if mark.strip(b"/:=") or mark.count(b"/") > 1 or _STATES.search(texts[n]):
            found.add(n)
    ends: list[int] = []
    for sign in _SIGNS:
        at = low.find(sign)
        while at >= 0:
            ends = ends or list(accumulate([len(text) + 1 for text in texts]))
            n = bisect_right(ends, at)
            if n not in found and _STATES.search(texts[n]):
                found.add(n)
            at = low.find(sign, ends[n])
    return found


def _told(line: bytes, text: str, mark: bytes) -> Told | None:
    """None: there is nothing to say."""
    if len(line) > _LONGEST:
        line, text = line[:_LONGEST], text[:_LONGEST]
    if mark.count(b"/") > 1:
        text = _folded(_PATH.sub(b" 0 ", line))
    first = text.find("0")
    if first < 0:
        return _without_digits(line.lower(), text.split(), mark)
    if not text[:first].strip():
        ordinal = _ORDINAL.match(line)
        if ordinal is not None and "0" not in text[ordinal.end():]:  # an item of a numbered list
            return None
    words, said = text.split(), _around(text, first)
    if _TALKATIVE.isdisjoint(words):
        return Told(_name(said), _kind(line, text, (), mark) if len(mark) > 2 else None, False)
    if not _VARYING.isdisjoint(words):
        said = " ".join([word for word in said.split() if word not in _VARYING])
    return Told(_name(said), _kind(line, text, words, mark), False)


def _without_digits(low: bytes, words: Sequence[str], mark: bytes) -> Told | None:
    bare = 0 if _VARYING.isdisjoint(words) else _name(" ".join([word for word in words if word not in _VARYING]))
    kind, heading = _said(low, words, mark), _HEADING.match(low) is not None
    return Told(bare, kind, heading) if bare or kind or heading else None


def _bare(text: str) -> str:
    """The words before the first that has digits, and those behind the last one."""
    first = text.find("0")
    return text if first < 0 else _around(text, first)


def _around(text: str, first: int) -> str:
    """`first`: where the first digit stands."""
    end = text.find(" ", text.rfind("0"))
    return text[: text.rfind(" ", 0, first) + 1] + (text[end:] if end >= 0 else "")


def _name(text: str) -> int:
    return crc32(text.encode("latin-1")) | 1


def _kind(line: bytes, text: str, words: Sequence[str], mark: bytes) -> str | None:
    """Of a line with digits; `words`: none if there is nothing to find in them."""
    if (b":" in line and _tells_time(_CLOCK, line)) or (len(mark) >= _EPOCH_DIGITS and _tells_time(_SECONDS, line)):
        return "timestamp"
    if words:
        if not _TELLING.isdisjoint(words) and (kind := _said(line.lower(), words, mark)):
            return kind
        if not _COUNTED.isdisjoint(words) and _is_counted(text) and _COUNTER.search(line.lower()):
            return "counter"
    return "id" if line.count(b"-") >= 4 and _IDS.search(line.lower()) else None


def _tells_time(times: re.Pattern[bytes], line: bytes) -> bool:
    low = b""
    for found in times.finditer(line):
        low = low or line.lower()
        at = found.start()
        if _NOWS.search(low, max(at - _BEFORE_TIME, 0), at + 1):
            return True
    return bool(low) and _TIME_FIRST.match(low) is not None


def _is_counted(text: str) -> bool:
    """Whether a number stands behind something that is counted."""
    at = text.find(" 0")
    while at > 0:
        before = text[:at].rstrip()
        if before[before.rfind(" ") + 1 :] in _BEFORE_NUMBER:
            return True
        at = text.find(" 0", at + 1)
    return False


def _said(low: bytes, words: Sequence[str], mark: bytes) -> str | None:
    for kind, telling, pattern in _BY_WORDS:
        if telling.isdisjoint(words) or (kind == "date" and len(mark) < _DATE_DIGITS and _DAYS.isdisjoint(words)):
            continue
        if pattern.search(low):
            return kind
    return None


def kind_of(line: str) -> str | None:
    """What a line says that will not stay; None where it does not say so itself."""
    found = described((line,)).told.get(0)
    return found and found.kind


def heads_state(line: str) -> bool:
    """Whether the state of a repository follows."""
    found = described((line,)).told.get(0)
    return found is not None and found.heading


def skeleton(text: str) -> str:
    """The words without what tends to vary."""
    raw = text.encode("utf-8", "surrogatepass")
    return " ".join(_bare(_folded(_PATH.sub(b" 0 ", raw))).split())


def units(text: str) -> list[str]:
    """Lines with their ends; a long line falls into its sentences. Joined they are the text again."""
    found = text.splitlines(keepends=True)
    if len(found) != text.count("\n") + (not text.endswith("\n")):  # it ends lines in other places too, or is empty
        found = [line + "\n" for line in text.split("\n")]
        found[-1] = found[-1][:-1]
        found = [line for line in found if line]
    if len(text) > _LONG_LINE and max(map(len, found)) > _LONG_LINE:
        return [unit for line in found for unit in (_sentences(line) if len(line) > _LONG_LINE else (line,))]
    return found


def _sentences(line: str) -> list[str]:
    found, at = [], 0
    for gap in _SENTENCE.finditer(line):
        found.append(line[at : gap.end()])
        at = gap.end()
    found.append(line[at:])
    return found
