"""A valid team file -> one frozen Policy, after the checks that look at more than one field.

Names must lead somewhere: classes in rules, aliases to allowed models, fallbacks without cycles, zones that exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

from router_policies import conditions
from router_policies.globs import globs
from router_policies.presets import CLASSES, KNOWN_LANES
from router_policies.problems import BadFile, Problem, did_you_mean, nearest, printable, shown
from router_policies.rules import (
    DAYS,
    Budget,
    Cache,
    Canary,
    ClientMay,
    Downgrade,
    Klass,
    Limits,
    ModelRules,
    Normalize,
    Policy,
    PolicyTest,
    Rate,
    Rule,
    Start,
    Wait,
)  # fmt: skip
from router_policies.types import Ask
from router_policies.yaml_events import Document, Path_

if TYPE_CHECKING:
    from router_policies.schema import BudgetPart, ClassPart, DowngradePart, GivenPart, RulePart, StartPart, TeamFile

_RATES = ("requests_per_minute", "tokens_per_minute", "concurrent", "usd_per_minute", "same_prompt_per_minute")


def build(document: Document, file: TeamFile) -> Policy:
    """Raises BadFile with all problems found."""
    work = _Build(document, file)
    policy = work.policy()
    if work.problems:
        raise BadFile(work.problems)
    return policy


class _Build:
    """One file on its way; goes on after a problem to find the next."""

    def __init__(self, document: Document, file: TeamFile) -> None:
        self.document, self.file = document, file
        self.problems: list[Problem] = []

    def policy(self) -> Policy:
        file = self.file
        classes = self._classes()
        self._known_class(file.default_class, classes, ("default_class",))
        for project, own in file.projects.items():
            self._known_class(own.default_class, classes, ("projects", project, "default_class"))
        if file.mode != "canary" and "canary" in file.model_fields_set:
            self._say(("canary",), "needs `mode: canary`", at_key=True)
        models = self._models()
        if file.closed:
            self._closed()
        for name, part in (("rules", file.rules), ("budgets", file.budgets), ("tests", file.tests)):
            self._unique(name, [entry.name for entry in part])
        if file.unpriced == "ceiling" and file.ceiling_usd_per_mtok is None:
            self._say(("unpriced",), "needs `ceiling_usd_per_mtok`: dollars per million tokens for what has no price")
        return Policy(
            team=file.team, version=_version(file, classes), description=file.description, file=self.document.file,
            classes=MappingProxyType(classes), default_class=file.default_class, models=models,
            closed=file.closed, mode=file.mode,
            canary=Canary(**file.canary.model_dump()),
            projects=MappingProxyType({name: own.default_class for name, own in file.projects.items()}),
            client_may=self._client_may(classes), rules=self._rules(classes, models), budgets=self._budgets(),
            normalize=_normalize(file), cache=self._cache(),
            unpriced=file.unpriced or ("refuse" if file.budgets else "allow"),
            ceiling_usd_per_mtok=file.ceiling_usd_per_mtok,
            limits=self._limits(), hang_up=file.hang_up, explore=file.explore,
            backends=() if file.backends.allow == ["*"] else globs(file.backends.allow),
            tests=self._tests(classes),
        )  # fmt: skip

    def _classes(self) -> dict[str, Klass]:
        classes = dict(CLASSES)
        for name, part in self.file.classes.items():
            if name not in CLASSES and part.value_usd_per_hour is None:
                self._say(("classes", name), "field `value_usd_per_hour` is missing", at_key=True)
            self._slip(name, CLASSES, ("classes", name), at_key=True)
            self._lanes(part.lanes, ("classes", name, "lanes"))
            self._lanes(part.wait.lanes, ("classes", name, "wait", "lanes"))
            self._zone(part.wait.timezone, ("classes", name, "wait", "timezone"))
            classes[name] = _klass(CLASSES.get(name, Klass(name=name)), part)
        return classes

    def _lanes(self, lanes: list[str] | None, path: Path_) -> None:
        """Lanes are free names, but one that is a letter or two off a known one is a slip."""
        for i, lane in enumerate(lanes or ()):
            self._slip(lane, KNOWN_LANES, (*path, i))

    def _slip(self, name: str, known: Collection[str], path: Path_, *, at_key: bool = False) -> None:
        near = nearest(name, known)
        if name not in known and near is not None and abs(len(name) - len(near)) <= 1 and near not in name:
            self._say(path, f"`{printable(name)}` looks like a slip", f"did you mean `{near}`?", at_key=at_key)

    def _models(self) -> ModelRules:
        part = self.file.models
        rules = ModelRules(
            allow=globs(part.allow), deny=globs(part.deny), aliases=MappingProxyType(dict(part.aliases)),
            fallbacks=MappingProxyType({model: tuple(others) for model, others in part.fallbacks.items()}),
        )  # fmt: skip
        for alias, model in part.aliases.items():
            path: Path_ = ("models", "aliases", alias)
            if model in part.aliases:
                meant = part.aliases[model]
                hint = "" if meant in part.aliases else f"`{printable(meant)}`"
                self._say(path, "leads to another alias; write the model itself", hint)
            elif refusal := rules.refusal(model):
                self._say(path, f"leads nowhere: {printable(refusal, 200)}")
        self._fallbacks(rules)
        return rules

    def _closed(self) -> None:
        """A pattern would let in what nobody named."""
        for field, names in (("backends", self.file.backends.allow), ("models", self.file.models.allow)):
            for i, name in enumerate(names):
                if "*" in name or "?" in name:
                    where: Path_ = (field, "allow", i) if field in self.file.model_fields_set else ("closed",)
                    self._say(where, f"`closed: true` needs every one of `{field}.allow` named, without patterns")

    def _fallbacks(self, rules: ModelRules) -> None:
        for model, others in rules.fallbacks.items():
            for i, other in enumerate(others):
                path: Path_ = ("models", "fallbacks", model, i)
                refusal = rules.refusal(other)
                if other in rules.aliases:
                    self._say(path, "is an alias; write the model itself", f"`{printable(rules.aliases[other])}`")
                elif _reaches(rules.fallbacks, other, model):
                    self._say(path, "makes a cycle: it falls back, directly or not, to the model it stands in for")
                elif refusal:
                    self._say(path, f"cannot be used: {printable(refusal, 200)}")
            if model in rules.aliases:
                self._say(("models", "fallbacks", model), "is an alias; write the model itself", at_key=True)

    def _client_may(self, classes: Mapping[str, Klass]) -> ClientMay:
        part = self.file.client_may
        if isinstance(part.choose_class, list):
            for i, name in enumerate(part.choose_class):
                self._known_class(name, classes, ("client_may", "class", i))
        choose = part.choose_class if isinstance(part.choose_class, bool) else frozenset(part.choose_class)
        return ClientMay(
            choose_class=choose, set_deadline=part.deadline, bypass_normalize=part.bypass_normalize, set_tags=part.tags
        )

    def _rules(self, classes: Mapping[str, Klass], models: ModelRules) -> tuple[Rule, ...]:
        rules = []
        for i, part in enumerate(self.file.rules):
            self._known_class(part.class_, classes, ("rules", i, "class"))
            self._lanes(part.lanes, ("rules", i, "lanes"))
            try:
                when = _condition(part, models)
            except conditions.BadCondition as bad:
                self._say(("rules", i, "when"), str(bad), bad.hint)
                continue
            klass = classes.get(part.class_, classes[next(iter(classes))])
            rules.append(Rule(name=part.name, klass=_ruled(klass, part), when=when))
        return tuple(rules)

    def _budgets(self) -> tuple[Budget, ...]:
        for i, budget in enumerate(self.file.budgets):
            self._zone(budget.timezone, ("budgets", i, "timezone"))
            self._downgrade(i, budget)
        return tuple(
            Budget(**{**budget.model_dump(), "downgrade": _downgrade(budget.downgrade)}) for budget in self.file.budgets
        )

    def _cache(self) -> Cache:
        part = self.file.cache
        for i, start in enumerate(part.pre_warm_at):
            self._zone(start.timezone, ("cache", "pre_warm_at", i, "timezone"))
        if part.pre_warm_usd_per_day and not part.pre_warm_at:
            hint = "name the times before which prompts are to be written"
            self._say(("cache", "pre_warm_usd_per_day"), "needs `pre_warm_at`", hint)
        starts = dict.fromkeys(_start(start) for start in part.pre_warm_at)
        return Cache(**{**part.model_dump(), "pre_warm_at": tuple(starts)})

    def _zone(self, name: str, path: Path_) -> None:
        if not _zone_exists(name):
            near = did_you_mean(name, available_timezones())
            self._say(path, f"must be an IANA time zone such as Europe/Berlin; is {shown(name)}", near)

    def _downgrade(self, i: int, budget: BudgetPart) -> None:
        part, path = budget.downgrade, ("budgets", i, "downgrade")
        missing = "`on_exhausted: downgrade` needs `downgrade` with lanes or a model"
        if (part is None) == (budget.on_exhausted == "downgrade"):
            where: Path_ = ("budgets", i, "on_exhausted") if part is None else path
            self._say(where, missing if part is None else "needs `on_exhausted: downgrade`")
        elif part is not None and not part.lanes and part.model is None:
            self._say(path, "says nothing", "name lanes or a model")
        elif part is not None:
            self._lanes(part.lanes, (*path, "lanes"))

    def _limits(self) -> Limits:
        part = self.file.limits
        self._unique("limits", [rate.name for rate in part.rates], ("limits", "rates"))
        for i, rate in enumerate(part.rates):
            if all(getattr(rate, name) is None for name in _RATES):
                self._say(("limits", "rates", i), "limits nothing", f"name one of {', '.join(_RATES)}")
        figures = {name: getattr(part, name) for name in _RATES}
        whole = [Rate(**figures)] if any(figures.values()) else []
        rates = [Rate(**{**rate.model_dump(), "models": globs(rate.models)}) for rate in part.rates]
        return Limits(
            max_output_tokens=part.max_output_tokens, max_body_bytes=part.max_body_bytes, max_choices=part.max_choices,
            rates=(*whole, *rates),
        )  # fmt: skip

    def _tests(self, classes: Mapping[str, Klass]) -> tuple[PolicyTest, ...]:
        tests = []
        for i, part in enumerate(self.file.tests):
            if part.expect.class_ is not None:
                self._known_class(part.expect.class_, classes, ("tests", i, "expect", "class"))
            expect = part.expect.model_dump(by_alias=True, exclude_none=True)
            if not expect:
                self._say(("tests", i, "expect"), "expects nothing", "name a class, lane, model or allowed")
            mark = self.document.values.get(("tests", i))
            ask = ask_of(self.file.team, part.given)
            tests.append(PolicyTest(name=part.name, ask=ask, expect=expect, line=mark.line if mark else 0))
        return tuple(tests)

    def _unique(self, field: str, names: list[str], path: Path_ = ()) -> None:
        for i, name in enumerate(names):
            if name in names[:i]:
                self._say((*(path or (field,)), i, "name"), f"another of the {field} has this name already: {printable(name)}")

    def _known_class(self, name: str, classes: Mapping[str, Klass], path: Path_) -> None:
        if name not in classes:
            self._say(path, f"there is no class `{printable(name)}`", did_you_mean(name, classes))

    def _say(self, path: Path_, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self.problems.append(self.document.problem(path, message, hint, at_key=at_key))


def _start(part: StartPart) -> Start:
    hour, minute = part.time.split(":")
    days = frozenset(DAYS.index(day) for day in part.days)
    return Start(hour=int(hour), minute=int(minute), days=days, timezone=part.timezone)


def _downgrade(part: DowngradePart | None) -> Downgrade | None:
    return None if part is None else Downgrade(lanes=globs(part.lanes), model=part.model)


def ask_of(team: str, given: GivenPart) -> Ask:
    """The ask that the gateway would make of such a request, its `x-tollway-` headers read."""
    headers = {name.lower(): value for name, value in given.headers.items()}
    pairs = (pair.partition("=") for pair in headers.get("x-tollway-tags", "").split(",") if "=" in pair)
    deadline = headers.get("x-tollway-deadline-ms", "")
    return Ask(
        team=team, model=given.model, path=given.path, headers=headers, stream=given.stream, has_tools=given.tools,
        tags={**{key.strip(): value.strip() for key, _, value in pairs}, **given.tags},
        client=given.client or headers.get("user-agent", ""), project=given.project,
        wished_class=headers.get("x-tollway-class"),
        deadline_ms=float(deadline) if deadline.isdecimal() else None, prompt_tokens=1_000, prompt_bytes=4_000,
    )  # fmt: skip


def _klass(base: Klass, part: ClassPart) -> Klass:
    """What the file says of a class over what is built in."""
    said = {name: getattr(part, name) for name in part.model_fields_set}
    if said.get("value_usd_per_hour", 0) is None:
        del said["value_usd_per_hour"]
    if "lanes" in said:
        said["lanes"] = globs(said["lanes"])
    if "wait" in said:
        said["wait"] = Wait(lanes=globs(part.wait.lanes), hours=part.wait.hours, timezone=part.wait.timezone)
    return replace(base, **said)


def _ruled(klass: Klass, part: RulePart) -> Klass:
    if part.lanes is not None:
        klass = replace(klass, lanes=globs(part.lanes))
    return klass if part.value_usd_per_hour is None else replace(klass, value_usd_per_hour=part.value_usd_per_hour)


def _condition(part: RulePart, models: ModelRules) -> conditions.Condition:
    if isinstance(part.when, str):
        return conditions.expression(part.when)
    return conditions.matchers(part.when, models.aliases)


def _normalize(file: TeamFile) -> Normalize:
    part = file.normalize
    if isinstance(part, str):
        return Normalize(level=part)
    return Normalize(level=part.level, hold_out=part.hold_out, passes=MappingProxyType(dict(part.passes)))


def _reaches(graph: Mapping[str, tuple[str, ...]], start: str, goal: str) -> bool:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        model = ahead.pop()
        if model == goal:
            return True
        if model not in seen:
            seen.add(model)
            ahead.extend(graph.get(model, ()))
    return False


def _zone_exists(name: str) -> bool:
    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (ValueError, OSError):  # not found is a KeyError and an OSError by turns
        return False
    except KeyError:
        return False
    return True


def _version(file: TeamFile, classes: Mapping[str, Klass]) -> str:
    """Hash of what the file means: not of comments, order of keys, or whether a value was inherited."""
    content: dict[str, Any] = file.model_dump(mode="json", by_alias=True, exclude={"extends", "classes"})
    content["classes"] = {name: _plain(klass) for name, klass in classes.items()}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def _plain(klass: Klass) -> dict[str, Any]:
    return {
        "value_usd_per_hour": klass.value_usd_per_hour, "first_token_deadline_ms": klass.first_token_deadline_ms,
        "total_deadline_ms": klass.total_deadline_ms, "epsilon": klass.epsilon, "lanes": [str(g) for g in klass.lanes],
        "wait": [str(g) for g in klass.wait.lanes] + [klass.wait.hours, klass.wait.timezone],
        "hedge": klass.hedge, "missed_deadline_usd": klass.missed_deadline_usd,
    }  # fmt: skip


