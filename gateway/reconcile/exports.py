"""A provider's export file -> lines of a bill, whatever its shape: recognised by what stands in it, never by its name."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from gateway.reconcile import anthropic, openai, table
from gateway.reconcile.lines import BadFile, Line, unit_of

SHAPES = {"openai": openai, "anthropic": anthropic}


@dataclass(frozen=True, slots=True)
class Export:
    lines: tuple[Line, ...]
    unit_nanos: int
    """The smallest step of its amounts."""
    shape: str


def read(path: Path, tz: str = "UTC") -> Export:
    """Raises `BadFile`, which names the file."""
    try:
        text = path.read_text("utf-8-sig")
        export = _json(text, ZoneInfo(tz)) if text.lstrip()[:1] in ("{", "[") else _csv(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadFile(f"{path}: is not a provider's export: line {line} is not UTF-8 text") from None
    except BadFile as error:
        raise BadFile(f"{path}: {error}") from None
    if not export.lines:
        raise BadFile(f"{path}: holds no usage and no cost; ask the provider for a range that has some")
    return export


def _csv(text: str) -> Export:
    return Export(tuple(table.lines(text)), unit_of(table.amounts(text)), "csv")


def _json(text: str, zone: ZoneInfo) -> Export:
    pages = _pages(text)
    name = next((name for name, shape in SHAPES.items() if all(shape.fits(page) for page in pages)), None)
    if name is None:
        raise BadFile("is neither an OpenAI page of buckets nor an Anthropic report; for others write a CSV")
    shape = SHAPES[name]
    if pages[-1].get("has_more"):
        raise BadFile("the last page says has_more: fetch those that follow and put all into one file, one after the other")
    try:
        lines = tuple(line for page in pages for line in shape.lines(page, zone))
        unit = unit_of((amount for page in pages for amount in shape.amounts(page)), getattr(shape, "CENTS", 1))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(f"a bucket is not as {name} documents it ({type(error).__name__}: {error})") from None
    return Export(lines, unit, name)


def _pages(text: str) -> list[Mapping[str, Any]]:
    """Pages one after the other, in an array, or alone."""
    decoder, at, found = json.JSONDecoder(parse_float=Decimal), 0, []
    while at < len(text.rstrip()):
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            document, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise BadFile(f"is not JSON: {error}") from None
        except RecursionError:
            raise BadFile("is nested too deeply for a provider's export") from None
        found += document if isinstance(document, list) else [document]
    for page in found:
        if not isinstance(page, dict) or not isinstance(page.get("data"), list):
            raise BadFile("holds JSON without a list `data`: save the provider's answer as it came")
    return sorted(found, key=lambda page: not page.get("has_more"))
