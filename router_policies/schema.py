"""The shape of one team's YAML file. Every field has its description here, and `json_schema()` hands them to editors."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from router_policies.globs import complaint
from router_policies.rules import DAYS, SCOPES, Day, Exhausted, Level, Window

NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
MANY = 1_000
_TIME = re.compile(r"([01]?\d|2[0-3]):[0-5]\d", re.ASCII)
_TAG = re.compile(r"[\w.\-/ ]{1,64}")


def _glob(text: str) -> str:
    wrong = complaint(text)
    if wrong:
        raise ValueError(wrong)
    return text


def _scope(text: str) -> str:
    if text in SCOPES or (text.startswith("tag:") and _TAG.fullmatch(text[4:])):
        return text
    raise ValueError(f"must be {', '.join(SCOPES)}, or tag:NAME")


def _time(text: str) -> str:
    if _TIME.fullmatch(text):
        return text
    raise ValueError("must be a time of day from 00:00 to 23:59")


Name = Annotated[str, Field(pattern=NAME)]
Scope = Annotated[str, AfterValidator(_scope)]
Text = Annotated[str, Field(max_length=500)]
Model = Annotated[str, Field(min_length=1, max_length=200)]
Pattern = Annotated[str, AfterValidator(_glob)]
Usd = Annotated[Decimal, Field(ge=0, le=1_000_000_000, decimal_places=9, allow_inf_nan=False)]
Ms = Annotated[float, Field(gt=0, le=30 * 86_400_000, allow_inf_nan=False)]
Value = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
UsdRate = Annotated[Decimal, Field(gt=0, le=1_000_000, decimal_places=9, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0, le=1_000_000_000)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, populate_by_name=False, defer_build=True
    )


class ModelsPart(_Part):
    allow: list[Pattern] = Field(default=["*"], min_length=1, max_length=MANY)
    """Models the team may use, as patterns with * and ?; default: all."""
    deny: list[Pattern] = Field(default=[], max_length=MANY)
    """Models the team may not use; deny beats allow."""
    aliases: dict[Model, Model] = {}
    """A name that clients may write, and the model that is meant."""
    fallbacks: dict[Model, list[Model]] = {}
    """A model, and what to use instead, in this order, where no lane can serve it."""


class WaitPart(_Part):
    lanes: list[Pattern] = Field(default=["batch", "flex"], min_length=1, max_length=MANY)
    """Cheap lanes, as patterns; the others are for calls whose deadline is at risk."""
    hours: Annotated[str, Field(pattern=r"^(([01]?\d|2[0-3])-([01]?\d|2[0-4]))?$")] = ""
    """Cheap hours, such as 22-6; default: any."""
    timezone: str = "UTC"
    """IANA zone of the hours."""


class ClassPart(_Part):
    value_usd_per_hour: Value | None = None
    """What an hour of waiting is worth: 60 for a person in an editor, 0 where nobody waits. Built-in classes have one."""
    first_token_deadline_ms: Ms | None = None
    """The first token must come within this time."""
    total_deadline_ms: Ms | None = None
    """The whole answer must come within this time."""
    epsilon: Share = 0.05
    """The greatest chance of missing a deadline at which a lane still counts as good."""
    lanes: list[Pattern] = []
    """Lanes this class may use, in order of preference on an equal sum; empty: any."""
    wait: WaitPart = WaitPart()
    """What calls of a batch (`/v1/batches`) wait for, as long as their deadline lets them."""
    hedge: bool = False
    """Whether a second lane is asked while the first is silent, where that is worth more than it costs."""
    missed_deadline_usd: Value = 0.0
    """With `hedge`: what a missed deadline costs beside the wait."""
    description: Text = ""
    """For people."""


class ClientMayPart(_Part):
    choose_class: bool | list[Name] = Field(default=True, alias="class")
    """Whether x-tollway-class and service_tier count: true, false, or the classes that may be chosen."""
    deadline: bool = True
    """Whether x-tollway-deadline-ms counts."""
    bypass_normalize: bool = False
    """Whether `x-tollway-bypass: normalize` counts."""
    tags: bool = True
    """Whether x-tollway-tags counts."""


class When(_Part):
    """Matchers; all that are given must hold."""

    header: dict[str, Pattern] = {}
    """Header name and pattern of its value; a header that is not there does not match."""
    path: Pattern | None = None
    """Pattern of the request's path."""
    model: Pattern | None = None
    """Pattern of the model, as the client wrote it or after its alias."""
    stream: bool | None = None
    """Whether the answer is streamed."""
    tag: dict[str, Pattern] = {}
    """Tag name and pattern of its value."""
    client: Pattern | None = None
    """Pattern of the caller's user agent."""
    project: Pattern | None = None
    """Pattern of the project that the key belongs to."""
    tools: bool | None = None
    """Whether the request offers tools."""


def _when_shape(value: Any) -> str:
    return "expression" if isinstance(value, str) else "matchers"


Condition = Annotated[
    Annotated[str, Tag("expression"), Field(min_length=1)] | Annotated[When, Tag("matchers")], Discriminator(_when_shape)
]


class RulePart(_Part):
    name: Name
    """Stands in the reason of every call the rule decides."""
    when: Condition
    """Matchers, or a CEL expression over headers, path, model, stream, tags, client, project, tools, prompt_bytes and hour."""
    class_: Name = Field(alias="class")
    """The class of a call that matches."""
    lanes: list[Pattern] | None = None
    """Lanes in place of the class's own."""
    value_usd_per_hour: Value | None = None
    """Value of waiting in place of the class's own."""


class DowngradePart(_Part):
    lanes: list[Pattern] = Field(default=[], max_length=MANY)
    """Lanes that calls may still use."""
    model: Model | None = None
    """A model in place of the one asked for."""


class BudgetPart(_Part):
    name: Name
    """Stands in the error when it is exhausted."""
    limit_usd: Usd
    """The most that may be spent in a window: a number, or a decimal number in quotes."""
    window: Window = "month"
    """When the count starts again."""
    timezone: str = "UTC"
    """IANA zone in which a day, week or month begins."""
    on_exhausted: Exhausted = "reject"
    """What happens to a call that does not fit any more: refuse it, send it down as `downgrade` says, or only count it."""
    downgrade: DowngradePart | None = None
    """With `on_exhausted: downgrade`: where calls go then."""
    status: Literal[402, 429] = 402
    """HTTP status of a refusal; 429 for clients that know no 402 (many try a 429 again and again)."""
    scope: Scope = "team"
    """Whose spending counts together: the team's, or each project's, key's, user's, model's, run's, or tag's (`tag:NAME`)."""


class NormalizePart(_Part):
    level: Level = "lossless"
    """How far prompts may be rewritten so that prefix caches hit."""
    hold_out: Share = 0.02
    """Share of sessions left untouched, so that savings are measured."""
    passes: dict[Name, bool] = {}
    """Single passes switched on or off."""


class StartPart(_Part):
    time: Annotated[str, AfterValidator(_time)]
    """Time of day, such as 08:00."""
    days: list[Day] = Field(default=list(DAYS), min_length=1, max_length=7)
    """Days of the week; default: all."""
    timezone: str = "UTC"
    """IANA zone of the time."""


class CachePart(_Part):
    plan: bool = True
    """Whether requests are marked for the provider's prompt cache by least expected cost; a client's own marks always stay."""
    hold_out: Share = 0.02
    """Share of sessions left unplanned, so that savings are measured."""
    fan_out_wait_ms: Annotated[float, Field(ge=0, le=120_000, allow_inf_nan=False)] = 10_000.0
    """Longest wait of calls that come together with a cold prefix in common for the one that writes it; 0: none."""
    keep_warm_usd_per_day: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 0.0
    """Most that calls may cost in a day (UTC) which only keep a prefix from expiring; 0: there are none."""
    pre_warm_usd_per_day: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 0.0
    """Most that calls may cost in a day (UTC) which write the beginnings of prompts ahead of the conversations that will have
    them, at the times of `pre_warm_at`; 0: there are none."""
    pre_warm_at: list[StartPart] = Field(default=[], max_length=100)
    """When traffic is known to begin: a working day, a nightly fleet of agents."""
    store_usd_per_day: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 0.0
    """Most that objects may cost in a day (UTC) which hold a fixed beginning at a provider that rents storage (Gemini): making
    them, and their storage; 0: there are none."""
    ask_diagnosis: bool = False
    """Whether providers that can say why their cache missed are asked to; their answers then say so too."""


class RatePart(_Part):
    name: Name
    """For people, and for telling two limits of one scope apart."""
    scope: Scope = "team"
    """Whose calls count together, as with budgets."""
    models: list[Pattern] = Field(default=[], max_length=MANY)
    """Models that it is about, as patterns; default: all."""
    requests_per_minute: Count | None = None
    """Most calls started in a minute."""
    tokens_per_minute: Count | None = None
    """Most tokens in a minute."""
    concurrent: Count | None = None
    """Most calls under way at once."""
    usd_per_minute: UsdRate | None = None
    """Most dollars in a minute, by what calls have cost: stops an agent that runs away."""
    same_prompt_per_minute: Count | None = None
    """Most calls in a minute with one and the same prompt: stops an agent that goes round in circles."""


class LimitsPart(_Part):
    max_output_tokens: Count | None = None
    """Most output tokens a call may ask for."""
    max_body_bytes: Count | None = None
    """Largest request."""
    max_choices: Count | None = None
    """Most answers that a call may ask for at once (`n`)."""
    requests_per_minute: Count | None = None
    """Most calls that the team may start in a minute: an even rate, with room for a tenth of it at once."""
    tokens_per_minute: Count | None = None
    """Most tokens, prompt and output, that the team may use in a minute."""
    concurrent: Count | None = None
    """Most calls of the team that may be under way at once."""
    usd_per_minute: UsdRate | None = None
    """Most dollars that the team may spend in a minute, by what its calls have cost."""
    same_prompt_per_minute: Count | None = None
    """Most calls of the team in a minute with one and the same prompt."""
    rates: list[RatePart] = Field(default=[], max_length=100)
    """Further limits, for each project, key, user, model, run or tag."""


class ProjectPart(_Part):
    default_class: Name
    """The class of the project's calls that neither client nor rule gives one."""
    description: Text = ""
    """For people."""


class BackendsPart(_Part):
    allow: list[Pattern] = Field(default=["*"], min_length=1, max_length=MANY)
    """Backends the team's calls may go to, as patterns; default: all."""


class CanaryPart(_Part):
    share: Share = 0.1
    """Share of runs, or of calls without a run, that this file decides."""
    max_cost_rise: Share = 0.1
    """Rolled back when a call costs this much more than under the live file, and chance does not explain a rise."""
    max_miss_rise: Share = 0.02
    """Rolled back when the share of missed deadlines and failures is higher by this much."""
    min_calls: Count = 100
    """Calls on either side before anything is concluded."""


class GivenPart(_Part):
    headers: dict[str, str] = {}
    """Request headers."""
    path: str = "/v1/chat/completions"
    """Request path."""
    model: str
    """Model as the client writes it."""
    stream: bool = False
    """Whether the answer is streamed."""
    tags: dict[str, str] = {}
    """Tags of the call."""
    client: str = ""
    """User agent."""
    project: str = ""
    """Project of the key."""
    tools: bool = False
    """Whether the request offers tools."""


class ExpectPart(_Part):
    class_: Name | None = Field(default=None, alias="class")
    """The class it gets."""
    lane: str | None = None
    """The lane it goes to, on an idle fast and standard lane."""
    model: str | None = None
    """The model it gets, after aliases."""
    allowed: bool | None = None
    """Whether the team may use the model at all."""


class TestPart(_Part):
    __test__ = False  # not for pytest

    name: Text
    """What the test says."""
    given: GivenPart
    """The request."""
    expect: ExpectPart
    """What must come out; only what is written is compared."""


class TeamFile(_Part):
    """One team's policy: what it may use, what waiting is worth to it, and what it may spend."""

    model_config = ConfigDict(title="Tollway policy of one team")

    team: Name
    """The team's name, as keys are created for it."""
    description: Text = ""
    """For people."""
    mode: Literal["live", "shadow", "canary"] = "live"
    """shadow: decides beside the team's live file and is only recorded; canary: decides a share of its calls."""
    canary: CanaryPart = CanaryPart()
    """With `mode: canary`: how large a share, and what rolls it back."""
    extends: str | None = None
    """Another file of the same folder; what stands here wins over what stands there."""
    models: ModelsPart = ModelsPart()
    """Which models, under which names."""
    classes: dict[Name, ClassPart] = {}
    """Classes of sensitivity to waiting; interactive, agent, standard and batch are built in and may be overridden."""
    default_class: Name = "standard"
    """The class of a call that neither client nor rule gives one."""
    projects: dict[Name, ProjectPart] = {}
    """Projects whose calls have a default class of their own."""
    client_may: ClientMayPart = ClientMayPart()
    """What the client's own headers may decide."""
    rules: list[RulePart] = Field(default=[], max_length=200)
    """Rules that give a call its class; the first that matches wins."""
    budgets: list[BudgetPart] = Field(default=[], max_length=100)
    """Limits of spending."""
    normalize: Level | NormalizePart = NormalizePart()
    """How far prompts may be rewritten: a level, or level, hold_out and passes."""
    cache: CachePart = CachePart()
    """What may be done with the providers' prompt caches."""
    unpriced: Literal["refuse", "ceiling", "allow"] | None = None
    """A model without a price: refuse (default with budgets), reckon with a ceiling, or allow (default without)."""
    ceiling_usd_per_mtok: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Dollars per million tokens of any class, for what has no price; needed with `unpriced: ceiling`."""
    limits: LimitsPart = LimitsPart()
    """Limits of single calls and of their rate."""
    explore: Annotated[float, Field(ge=0, le=0.2, allow_inf_nan=False)] = 0.05
    """Greatest share of calls that may try a lane whose figures are stale; never calls with a deadline at risk."""
    hang_up: Literal["cancel", "drain"] = "cancel"
    """When the client goes away: stop the upstream, or let it end."""
    backends: BackendsPart = BackendsPart()
    """Where the team's calls may go."""
    closed: bool = False
    """Nothing that is not named: backends and models must be written out, without patterns; nothing goes elsewhere."""
    tests: list[TestPart] = Field(default=[], max_length=500)
    """Examples that `tollway policy test` checks."""


def json_schema() -> dict[str, Any]:
    """JSON Schema of a team file, for editors."""
    schema = TeamFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
