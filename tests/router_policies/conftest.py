"""Builders with defaults: an ask, a lane, terms, and a folder of policy files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router_policies.presets import default_policy
from router_policies.types import Ask, Lane, Rates, Served, Terms

MODEL = "m"


def make_ask(**given: Any) -> Ask:
    return Ask(**{"team": "t", "model": MODEL, "prompt_tokens": 1_000, "max_output_tokens": 100, **given})


def make_lane(name: str = "standard", backend: str = "b", **given: Any) -> Lane:
    rates = given.pop("rates", Rates(1_000_000, 100_000, 1_250_000, 4_000_000))
    models = given.pop("models", {MODEL: Served(MODEL, given.pop("window", 8_192), rates)})
    return Lane(**{"key": f"{backend}/{name}", "backend": backend, "name": name, "models": models, **given})


def make_terms(**given: Any) -> Terms:
    policy = given.pop("policy", default_policy())
    klass = given.pop("klass", policy.classes["standard"])
    defaults = {"model": MODEL, "value_usd_per_s": klass.value_usd_per_s, "output_tokens": 100.0, "output_spread": 0.0,
                "first_token_deadline_s": None, "total_deadline_s": None}
    return Terms(policy=policy, klass=klass, **{**defaults, **given})


@pytest.fixture
def ask() -> Callable[..., Ask]:
    return make_ask


@pytest.fixture
def lane() -> Callable[..., Lane]:
    return make_lane


@pytest.fixture
def terms() -> Callable[..., Terms]:
    return make_terms


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes files given as name=text (`a_yaml` is a.yaml) and returns their folder."""

    def write_files(**texts: str) -> Path:
        for name, text in texts.items():
            (tmp_path / name.replace("_yaml", ".yaml")).write_text(text, encoding="utf-8")
        return tmp_path

    return write_files
