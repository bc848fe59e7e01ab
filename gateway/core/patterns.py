"""Text that changes from call to call by its nature: clocks, ids, counters, nonces, the state of a repository.

`kind_of` knows a line by what it says of itself (a label and a value); a bare date or number is not enough, for an app may
send it for ever. Lines that only show by changing are learnt (`apps.py`), by their skeleton: the line with its numbers,
ids and paths taken out.
"""
from __future__ import annotations

import re

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
_NOW = r"(?:current|today|today'?s|now|timestamp|(?:local|server|system) time|as of|date(?: and |/)?time|clock|time)"
_OF = r"(?:request|req|trace|span|session|conversation|correlation|message|run|job|invocation|execution)"
_COUNTED = r"(?:request|turn|step|message|attempt|iteration|call|counter|tokens?(?: used| left| remaining)?)"
_STATE = r"(?:git ?status|current branch|head(?: commit)?|latest commit|commit hash|working tree)"
_LISTED = r"(?:git ?status|status|recent commits|changed files|modified files|untracked files|git log|git diff)"


def _any(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(texts), re.IGNORECASE)


PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("timestamp", _any(
        rf"\b{_NOW}\b.{{0,40}}?(?:{_TIME}|{_EPOCH})", rf"\b{_NOW}\b.{{0,40}}?{_DATE}.{{0,4}}{_TIME}",
        rf"^\W*{_DATE}[T ]{_TIME}", rf"^\W*{_EPOCH}\W*$",
    )),
    ("date", _any(rf"\b(?:today|today'?s|current|date|day)\b.{{0,30}}?(?:{_DATE}|\b{_DAY}\b)")),
    ("nonce", _any(r"\b(?:nonce|cache[ _-]?bust(?:er|ing)?|salt|random seed)\b\s*[:=#]?\s*\S*\d")),
    ("id", _any(rf"\b{_OF}[ _-]?(?:id|uuid|key)\b\s*[:=#]?\s*\S*\d", _UUID)),
    ("counter", _any(
        rf"\b{_COUNTED}\s*(?:no\.?|number|count|#|:|=)+\s*\d+",
        rf"\b(?:you are|you're|we are|we're|currently|this is)\b.{{0,20}}\b{_COUNTED}\s+\d+",
    )),
    ("git", _any(rf"\b{_STATE}\b\s*(?:[:=]|is\b)", rf"\bcommit\b\s*[:=]?\s*{_HEX}")),
)  # fmt: skip
GIT_SECTION = re.compile(rf"^\W*{_LISTED}\W*:\s*$", re.IGNORECASE)
"""A heading under which the state of a repository follows, up to the next blank line."""
_SUSPECT = re.compile(r"\d|status|branch|today|commit", re.IGNORECASE)
MASKED = _any(
    _UUID, r"(?:/[\w.\-]+){2,}/?", _HEX, r"\d+(?:[.:,]\d+)*", rf"\b{_DAY}\b", rf"\b{_MONTH}\b", r"\b[AP]M\b",
    r"\b[A-Za-z0-9_\-]*\d[A-Za-z0-9_\-]*\b",
)  # fmt: skip
_UNIT = re.compile(r"[^\n]*\n|[^\n]+")
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+(?=[A-Z(\[])")
_LONG_LINE, _LONGEST = 200, 2_000


def kind_of(line: str) -> str | None:
    """What a line says that will not stay; None where it does not say so itself."""
    if len(line) > _LONGEST or not _SUSPECT.search(line):
        return None
    return next((kind for kind, pattern in PATTERNS if pattern.search(line)), None)


def skeleton(line: str) -> str:
    """The line without what tends to vary."""
    return MASKED.sub("\0", line[:_LONGEST]).strip()


def units(text: str) -> list[str]:
    """Lines with their ends; a long line falls into its sentences. Joined they are the text again."""
    found: list[str] = []
    for line in _UNIT.findall(text):
        if len(line) <= _LONG_LINE:
            found.append(line)
            continue
        at = 0
        for gap in _SENTENCE.finditer(line):
            found.append(line[at : gap.end()])
            at = gap.end()
        found.append(line[at:])
    return found
