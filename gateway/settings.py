"""`tollway.yaml` and the environment -> one frozen `Settings`; nothing else in the program reads either.

Secrets never stand in the file: a field that holds one is a reference, `env:NAME` or `file:PATH`, resolved here once.
Relative paths are relative to the file that names them.
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.secret import Secret
from gateway.redis_link import BadAddress, address
from gateway.settings_file import AlertSettings, BackendSettings, File, LoginSettings, QueueSettings
from router_policies import strict_yaml
from router_policies.unserved import Served

DEFAULT = Path("tollway.yaml")
SHIPPED_POLICIES = Path(__file__).parent.parent / "router_policies" / "teams"
_PLACEHOLDERS = frozenset({"changeme", "change-me", "change_me", "secret", "password", "pepper", "default", "tollway"})


class SettingsError(Exception):
    """The settings cannot be used; the text says where and what to do."""


class Settings(BaseModel):
    """What the program runs with: the file's fields, paths made absolute, secrets resolved."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    backends: Mapping[str, BackendSettings]
    backend_keys: Mapping[str, Secret]
    passthrough: Mapping[str, str] = Field(default_factory=dict)
    policies: Path
    prices: tuple[Path, ...]
    data: Path
    database_url: str
    redis_url: Secret | None = None
    redis_ca: str | None = None
    redis_away: Literal["lease", "closed"] = "lease"
    redis_timeout_ms: int = 200
    organisation: str = "default"
    database_upgrade: Literal["start", "command"] = "start"
    clickhouse_url: Secret | None
    admin_key: Secret | None
    key_pepper: Secret | None = None
    proxies: tuple[str, ...] = ()
    plain_http: bool = False
    login: LoginSettings = Field(default_factory=LoginSettings)
    alerts: AlertSettings = Field(default_factory=AlertSettings)
    alert_secrets: Mapping[str, Secret] = Field(default_factory=dict)
    """`CHANNEL.url` and `CHANNEL.password`."""
    queue: QueueSettings | None = None
    max_body_bytes: int
    max_attempts: int
    retries: int
    max_retry_wait_ms: float
    prefix_index_mb: int = 64
    known_parts_mb: int = 8
    known_turns_mb: int = 16
    share_text: bool = False
    explain_mb: int = 32
    keepalive_ms: float
    durability: Literal["process", "power"]
    journal_max_mib: int
    drain_s: float
    unready_s: float
    max_connections: int
    max_connections_per_address: int
    memory_max_mib: int | None
    log_level: str
    file: Path | None = None
    file_digest: bytes | None = None
    """Of the file as it was read: `settings_source` tells when it has changed since."""


def load(path: Path, env: Mapping[str, str] | None = None, *, secrets: bool = True) -> Settings:
    """`secrets=False`: for who only wants to know what there is, and has no keys. Raises `strict_yaml.BadFile` (file, line,
    nearest word) or `SettingsError`."""
    if not path.is_file():
        raise SettingsError(f"{path}: there is no such file; `tollway up` needs none, `tollway serve` does")
    file = strict_yaml.load(path, File)
    try:
        return resolve(file if secrets else _without_secrets(file), path.parent, os.environ if env is None else env)
    except SettingsError as error:
        raise located(path, error) from error


def located(path: Path, error: SettingsError) -> SettingsError:
    """The same error, whose text begins with the field that is wrong, with file, line and column of that before it."""
    field = str(error).partition(": ")[0]
    try:
        places = strict_yaml.read_document(path).values
    except strict_yaml.BadFile:
        return error
    marks = {strict_yaml.dotted(place): mark for place, mark in places.items() if place}
    while field and field not in marks:
        field = field.rpartition(".")[0]
    mark = marks.get(field) or strict_yaml.Mark(str(path), 1, 1)
    return SettingsError(f"{mark.file}:{mark.line}:{mark.column}: {error}")


def at_hand(config: Path | None, data: Path | None = None) -> Settings:
    """For commands that need no secret: of `config`, else of ./tollway.yaml, else what `tollway up` has without one; `data`, a
    data folder, wins. Raises as `load`."""
    if config is None and not DEFAULT.is_file():
        settings = resolve(File(), Path(), {})
    else:
        settings = load(config or DEFAULT, secrets=False)
    if data is None:
        return settings
    own = settings.database_url == f"sqlite:///{settings.data / 'tollway.db'}"
    url = f"sqlite:///{data.resolve() / 'tollway.db'}" if own else settings.database_url
    return settings.model_copy(update={"data": data.resolve(), "database_url": url})


def served(settings: Settings) -> Served:
    """What policies may name of it. Paths that are passed through take models of any name."""
    backends = settings.backends
    return Served(
        frozenset() if settings.passthrough else frozenset(model for one in backends.values() for model in one.models),
        frozenset(lane for one in backends.values() for lane in one.lanes), frozenset(backends),
    )  # fmt: skip


def _without_secrets(file: File) -> File:
    backends = {name: backend.model_copy(update={"key": None}) for name, backend in file.backends.items()}
    alerts = file.alerts.model_copy(update={"channels": {}})
    return file.model_copy(
        update={"backends": backends, "alerts": alerts, "redis_url": None, "admin_key": None, "key_pepper": None}
    )


def resolve(file: File, folder: Path, env: Mapping[str, str]) -> Settings:
    """Makes paths absolute and looks secrets up. Raises `SettingsError` for a reference that leads nowhere."""
    data, backends = (folder / file.data).resolve(), _each_account(file.backends)
    keys = {
        name: _secret(backend.key, f"backends.{name}.key", folder, env)
        for name, backend in backends.items()
        if backend.key is not None
    }
    return Settings(
        backends=backends,
        backend_keys=keys,
        passthrough=_passthrough(file, backends),
        policies=(folder / file.policies).resolve() if file.policies else SHIPPED_POLICIES,
        prices=tuple((folder / p).resolve() for p in file.prices),
        data=data,
        database_url=database_url(file, folder),
        database_upgrade=file.database_upgrade,
        redis_url=_redis_url(file, folder, env),
        redis_ca=str((folder / file.redis_ca).resolve()) if file.redis_ca else None,
        redis_away=file.redis_away,
        redis_timeout_ms=file.redis_timeout_ms,
        clickhouse_url=None if file.clickhouse_url is None else _secret(file.clickhouse_url, "clickhouse_url", folder, env),
        organisation=file.organisation,
        admin_key=None if file.admin_key is None else _secret(file.admin_key, "admin_key", folder, env),
        key_pepper=None if file.key_pepper is None else _pepper(file.key_pepper, folder, env),
        proxies=tuple(file.proxies),
        plain_http=file.plain_http,
        login=file.login,
        alerts=file.alerts,
        alert_secrets=_alert_secrets(file, folder, env),
        queue=_queue(file),
        max_body_bytes=file.max_body_bytes,
        max_attempts=file.max_attempts,
        retries=file.retries,
        max_retry_wait_ms=file.max_retry_wait_ms,
        prefix_index_mb=file.prefix_index_mb,
        known_parts_mb=file.known_parts_mb,
        known_turns_mb=file.known_turns_mb,
        share_text=file.share_text,
        explain_mb=file.explain_mb,
        keepalive_ms=file.keepalive_ms,
        durability=file.durability,
        journal_max_mib=file.journal_max_mib,
        drain_s=file.drain_s,
        unready_s=file.unready_s,
        max_connections=file.max_connections,
        max_connections_per_address=file.max_connections_per_address,
        memory_max_mib=file.memory_max_mib,
        log_level=file.log_level,
    )


def _pepper(reference: str, folder: Path, env: Mapping[str, str]) -> Secret:
    pepper = _secret(reference, "key_pepper", folder, env)
    if pepper.reveal().lower() in _PLACEHOLDERS:
        raise SettingsError(f"key_pepper: {reference} holds a placeholder; put a long random text there")
    return pepper


def _alert_secrets(file: File, folder: Path, env: Mapping[str, str]) -> dict[str, Secret]:
    wanted = {
        f"{name}.{field}": reference
        for name, channel in file.alerts.channels.items()
        for field, reference in (("url", channel.url), ("password", channel.password))
        if reference is not None
    }
    return {name: _secret(reference, f"alerts.channels.{name}", folder, env) for name, reference in wanted.items()}


def _redis_url(file: File, folder: Path, env: Mapping[str, str]) -> Secret | None:
    text = file.redis_url
    if text is None:
        return None
    referred = text.startswith(("env:", "file:"))
    url = _secret(text, "redis_url", folder, env) if referred else Secret(text)
    try:
        server = address(url.reveal())
    except BadAddress as error:
        raise SettingsError(f"redis_url: {error}") from error
    if server.password is not None and not referred:
        where = "write env:NAME or file:PATH, and put the address with its password there"
        raise SettingsError(f"redis_url: secrets never stand in this file; {where}")
    return url


def database_url(file: File, folder: Path) -> str:
    """Where ledger and keys are."""
    return file.database_url or f"sqlite:///{(folder / file.data).resolve() / 'tollway.db'}"


def _each_account(backends: Mapping[str, BackendSettings]) -> Mapping[str, BackendSettings]:
    """Each account as a backend of its own. Raises `SettingsError` where two would have one name."""
    found: dict[str, BackendSettings] = {}
    for name, backend in backends.items():
        accounts = {f"{name}-{account}": said for account, said in backend.accounts.items()}
        for own, said in accounts.items() or [(name, None)]:
            if own in found or (said is not None and own in backends):
                raise SettingsError(f"backends.{name}.accounts: {own!r} is another backend's name too")
            found[own] = backend if said is None else backend.model_copy(update={
                "accounts": {}, "key": said.key, "url": said.url or backend.url, "region": said.region or backend.region,
                "provider": backend.provider or name,
            })  # fmt: skip
    return found


def _queue(file: File) -> QueueSettings | None:
    if file.queue is not None and file.queue.store == "database" and (file.database_url or "sqlite").startswith("sqlite"):
        raise SettingsError("queue.store: `database` needs PostgreSQL (`database_url: postgresql://...`)")
    return file.queue


def _passthrough(file: File, backends: Mapping[str, BackendSettings]) -> Mapping[str, str]:
    for prefix, backend in file.passthrough.items():
        if backend not in backends:
            raise SettingsError(f"passthrough.{prefix}: there is no backend {backend!r} under `backends`")
    return file.passthrough


def _secret(reference: str, place: str, folder: Path, env: Mapping[str, str]) -> Secret:
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = env.get(name, "")
        if not value:
            raise SettingsError(f"{place}: the environment variable {name} is not set or empty")
    else:
        try:
            value = (folder / name).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SettingsError(f"{place}: cannot read the file {name}: {error.strerror}") from error
        if not value:
            raise SettingsError(f"{place}: the file {name} is empty")
    if not value.isascii() or not value.isprintable():
        raise SettingsError(f"{place}: {reference} holds characters that cannot stand in an HTTP header")
    return Secret(value)
