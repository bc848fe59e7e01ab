"""`tollway policy explain`: what would be decided for a request, and why every other lane lost."""
from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from gateway.backends.fleet import Fleet
from gateway.backtests.history import rates_now
from gateway.commands.remote import print_json, print_table
from gateway.dialects import DIALECTS
from gateway.metering import prices
from gateway.settings import SHIPPED_POLICIES, Settings, SettingsError
from gateway.settings import load as load_settings
from router_policies import checks
from router_policies.files import BadFile, PolicySet, load_folder
from router_policies.policy import resolve_model
from router_policies.presets import example_lanes
from router_policies.problems import printable
from router_policies.types import Ask, Lane

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_BYTES_PER_TOKEN = 4


@click.command()
@click.argument("request", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--team", required=True)
@click.option("--policies", type=FOLDER, help="policy folder; default: that of tollway.yaml, else the shipped examples")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False),
    help="tollway.yaml with lanes and prices; default: ./tollway.yaml where it is, else two example lanes",
)
@click.option("--header", multiple=True, metavar="NAME:VALUE", help="a request header, as often as needed")
@click.option("--path", default="/v1/chat/completions", show_default=True)
@click.option("--hour", type=click.IntRange(0, 23), help="of the day, UTC, for rules that ask for it; default: now")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def explain(
    request: Path, team: str, policies: Path | None, config: Path | None, header: tuple[str, ...], path: str, hour: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """What would be decided for the JSON body in REQUEST, and why every other lane lost.

    Lanes are as they are before their first answer: first guesses, nothing in flight, nothing in their caches.
    """
    ask = _asked(request, team, path, dict(_pair(one) for one in header), time.gmtime().tm_hour if hour is None else hour)
    settings = _settings(config)
    found = _load(policies or (settings.policies if settings else None))
    policy = found.for_team(team)
    model = resolve_model(policy, ask.model).model
    lanes = example_lanes(model) if settings is None else _lanes(settings, path)
    decision, rows = checks.explain(policy, ask, lanes)
    if as_json:
        print_json({"class": decision.class_name, "reason": decision.reason, "lanes": [row._asdict() for row in rows]})
        return
    click.echo(decision.reason)
    if team not in found.policies:
        click.echo(f"There is no policy file of team {printable(team)}: the default policy decides.", err=True)
    if settings is None:
        click.echo("These are example lanes; --config tollway.yaml has yours.", err=True)
    table = Table("place", "lane", "cost", "wait s", "sum", "late", "says")
    for row in rows:
        late = "" if row.miss_chance is None else f"{row.miss_chance:.0%}"
        place = str(row.place or "-")
        table.add_row(place, row.lane, _usd(row.cost_usd), _usd(row.wait_s), _usd(row.score_usd), late, row.says)
    print_table(table)


class _Body(msgspec.Struct):
    """What a decision looks at, whichever API it is."""

    model: str
    stream: bool | None = None
    tools: list[Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    service_tier: str | None = None

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_output_tokens or self.max_tokens


def _asked(request: Path, team: str, path: str, headers: dict[str, str], hour: int) -> Ask:
    raw = request.read_bytes()
    try:
        body = msgspec.convert(msgspec.json.decode(raw), _Body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.ClickException(f"{request}: is no request body with a model: {error}") from error
    return Ask(
        team=team, model=body.model, path=path, headers=headers, client=headers.get("user-agent", ""),
        stream=bool(body.stream), has_tools=bool(body.tools), prompt_bytes=len(raw),
        prompt_tokens=len(raw) // _BYTES_PER_TOKEN, max_output_tokens=body.most,
        wished_class=headers.get("x-tollway-class"), wished_tier=body.service_tier,
        hour=hour,
    )  # fmt: skip


def _settings(config: Path | None) -> Settings | None:
    if config is None and not Path("tollway.yaml").is_file():
        return None
    try:
        return load_settings(config or Path("tollway.yaml"), secrets=False)
    except (BadFile, SettingsError) as error:
        raise click.ClickException(str(error)) from error


def _lanes(settings: Settings, path: str) -> tuple[Lane, ...]:
    """Those that serve clients of this path."""
    dialect = next((name for name, each in DIALECTS.items() if path == each.PATH), None)
    if dialect is None:
        known = ", ".join(each.PATH for each in DIALECTS.values())
        raise click.BadParameter(f"no lane serves {path}; known are {known}", param_hint="--path")
    return Fleet(settings, rates_now(prices.load(settings.prices))).lanes(dialect)


def _load(folder: Path | None) -> PolicySet:
    try:
        return load_folder(folder or SHIPPED_POLICIES)
    except BadFile as error:
        raise click.ClickException(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.BadParameter(f"{text!r} is not NAME:VALUE", param_hint="--header")
    return name.strip().lower(), value.strip()


def _usd(value: Any) -> str:
    return "" if value is None else f"{value:.6g}"
