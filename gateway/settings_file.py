"""What may stand in `tollway.yaml`, field by field, and what it means where nothing is said; read by `settings.py` alone."""
from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Api = Literal["chat", "responses", "embeddings", "messages", "count_tokens", "files", "batches"]
APIS_OF: Mapping[str, tuple[Api, ...]] = {
    "openai": ("chat", "embeddings"), "anthropic": ("messages", "count_tokens"), "other": (),
}
"""What a backend speaks if nothing is said."""
STORES = frozenset({"files", "batches"})
"""APIs that keep things at the provider; either dialect may have them."""
NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Of a backend or a lane: it stands in headers, metrics and ids."""
_OUR_PATHS = ("v1", "tollway", "healthz", "readyz", "metrics")
_SAFE = ("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")
_HAVE_RESPONSES = ("https://api.openai.com", "https://api.x.ai")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _http_url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or any(c.isspace() for c in text):
        raise ValueError("must be an address such as https://api.openai.com/v1")
    return text.rstrip("/")


def _reference(text: str) -> str:
    if not text.startswith(("env:", "file:")) or text.endswith(":"):
        raise ValueError("must be a reference, env:NAME or file:PATH; secrets never stand in this file")
    return text


def _path_prefix(text: str) -> str:
    if not text.startswith("/") or text.endswith("/") or text.split("/")[1] in _OUR_PATHS:
        raise ValueError("must be a path of its own such as /gemini, without a slash at its end")
    return text


Url = Annotated[str, AfterValidator(_http_url)]
Reference = Annotated[str, AfterValidator(_reference)]
Ms = Annotated[float, Field(gt=0, le=3_600_000)]
PathPrefix = Annotated[str, AfterValidator(_path_prefix)]
Number = Annotated[float, Field(ge=0)]


class LaneSettings(_Part):
    """One way to be served by a backend: a service tier of a provider, or a pool of one's own."""

    service_tier: str | None = Field(None, description="value of the request's `service_tier` for this lane")
    set: dict[str, Any] = Field(default_factory=dict, description="further body fields this lane sends, name to value")
    priced_as: str | None = Field(None, description="tier of the price row, where the answer does not name one")
    batch: bool = Field(False, description="its calls are billed at batch prices, whatever tier the answers name")
    offline: bool = Field(
        False, description="reached through the provider's batch API only, by what waits in the `queue`"
    )  # fmt: skip
    max_in_flight: int | None = Field(None, gt=0, description="calls at once; more go to another lane")
    slots: int | None = Field(None, gt=0, description="calls that an own pool serves side by side; more wait in its queue")
    first_token_ms: Ms = Field(500.0, description="first guess of the time to the first token of a short prompt")
    prefill_tokens_per_s: Number = Field(5_000.0, description="first guess of how fast a prompt is read")
    ms_per_output_token: Ms = Field(20.0, description="first guess of the time per generated token")
    spread: float = Field(0.5, ge=0.0, le=3.0, description="first guess of how far times stray: sigma of their logarithm")


class ModelSettings(_Part):
    """How one model is called at a backend."""

    upstream: str | None = Field(None, description="the backend's own name, if it differs")
    context_tokens: int | None = Field(None, gt=0, description="the longest prompt plus output that it takes")
    max_output_tokens: int | None = Field(None, gt=0, description="what it generates at most")


EngineName = Literal["embedded", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "ray-serve-llm", "llm-d", "dynamo"]

KNOW_NO_SALT = ("llama.cpp", "dynamo")


class AccountSettings(_Part):
    """One of several accounts, or regions, of a backend: each has caches and rate limits of its own."""

    key: Reference = Field(description="where its API key is: env:NAME or file:PATH")
    url: Url | None = Field(None, description="its address, if it differs")
    region: str | None = Field(None, description="region class of the price rows, if it differs")


class BackendSettings(_Part):
    """An address, a key, a dialect and models."""

    dialect: Literal["openai", "anthropic", "other"] = Field(
        description="the wire format this backend speaks; `other`: reached through `passthrough` only"
    )
    speaks: list[Api] | None = Field(
        None,
        description="APIs under its address; default for openai: chat and embeddings, and responses at api.openai.com and "
        "api.x.ai; for anthropic: messages and count_tokens",
    )
    url: Url = Field(description="base address, e.g. https://api.openai.com/v1")
    key: Reference | None = Field(None, description="where its API key is: env:NAME or file:PATH")
    accounts: dict[Annotated[str, Field(pattern=NAME)], AccountSettings] = Field(
        default_factory=dict,
        description="several keys or regions instead of one `key`: each is a backend of its own, NAME-ACCOUNT, and a"
        " conversation stays where its prefix is cached",
    )
    key_header: str | None = Field(
        None, pattern=r"^[a-z0-9-]+$", description="header with the key; default: authorization, x-api-key for anthropic"
    )
    provider: str | None = Field(None, description="name in the price book; default: the backend's own name")
    region: str | None = Field(None, description="region class of the price rows")
    models: dict[str, ModelSettings | str] | list[str] = Field(
        default_factory=list[str],
        description="names that clients use; a mapping may give the backend's own name for each",
    )
    lanes: dict[Name, LaneSettings] = Field(default_factory=lambda: {"standard": LaneSettings()})
    headers: dict[str, str] = Field(default_factory=dict, description="further headers sent to this backend")
    connect_timeout_ms: Ms = 5_000.0
    first_byte_timeout_ms: Ms = Field(600_000.0, description="longest wait for the answer's headers")
    idle_timeout_ms: Ms = Field(60_000.0, description="longest silence between two chunks of an answer")
    media_urls: Literal["pass", "refuse"] | None = Field(
        None,
        description="addresses of pictures and files in a prompt: pass them on, or refuse all but data:; default: refuse where "
        "the backend's own address is inside our network, for it would fetch from there",
    )
    fields: Literal["pass"] | list[Annotated[str, Field(min_length=1, max_length=512)]] | None = Field(
        None,
        description="fields of requests that travel: `pass`: any; a list: the known ones and these; default: the known ones "
        "where `engine` is named, else any",
    )
    max_tool_name: int | None = Field(
        None, ge=16, le=1_000,
        description="longest name of a tool that it takes: longer ones travel shortened and come back whole; default: what the"
        " API allows (64, for anthropic 128) where a request is translated, else none",
    )  # fmt: skip
    cache_ttl: bool = Field(True, description="whether it takes a lifetime (`ttl`) in cache markers; false: it is left out")
    cache_salt: bool = Field(False, description="send a salt per team, for own engines that share a prefix cache")
    engine: EngineName | None = Field(
        None,
        description="which model server it is: its load is then asked for twice a second and weighed in decisions, and calls "
        "carry their urgency where the server was found to take it",
    )
    kv_events: str | None = Field(
        None, pattern=r"^(tcp://[^/\s]+:\d+|/\S*)$",
        description="where it publishes what its cache holds: tcp://HOST:PORT (vLLM, SGLang), or a path under its root: "
        "/kv_events (embedded), /kv_cache_events (TensorRT-LLM)",
    )  # fmt: skip
    kv_replay: str | None = Field(
        None, pattern=r"^tcp://[^/\s]+:\d+$", description="where events that were missed can be asked for: its replay_endpoint"
    )

    @model_validator(mode="after")
    def _fits(self) -> BackendSettings:
        if not self.models and self.dialect != "other":
            raise ValueError("models: name at least one model")
        if isinstance(self.models, list) and len(set(self.models)) < len(self.models):
            raise ValueError("models: name each model once")
        if self.cache_salt and self.engine in KNOW_NO_SALT:
            raise ValueError(f"cache_salt: {self.engine} knows no salt, so teams would share its prefix cache; leave it out")
        if self.accounts and self.key is not None:
            raise ValueError("key: stands with each of the accounts, where there are some")
        for api in self.speaks or ():
            spoken = self.dialect != "other" and (api in APIS_OF["anthropic"]) == (self.dialect == "anthropic")
            if not spoken and api not in STORES:
                raise ValueError(f"speaks: {api} is not an API of the dialect {self.dialect}")
        return self

    @property
    def apis(self) -> tuple[Api, ...]:
        """What it speaks, said or supposed."""
        if self.speaks is not None:
            return tuple(self.speaks)
        responses: tuple[Api, ...] = ("responses",) if self.url.startswith(_HAVE_RESPONSES) else ()
        return APIS_OF[self.dialect] + (responses if self.dialect == "openai" else ())

    @property
    def by_name(self) -> Mapping[str, ModelSettings]:
        if isinstance(self.models, list):
            return {name: ModelSettings() for name in self.models}
        return {n: ModelSettings(upstream=m) if isinstance(m, str) else m for n, m in self.models.items()}


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no address or network such as 10.0.0.7 or 10.0.0.0/8") from error
    return text


class LoginSettings(_Part):
    """How people sign in at the usage and admin paths, beside keys. Whom nobody has added stays out."""

    oidc_issuer: Url | None = Field(None, description="identity provider: its issuer address, as its tokens name it")
    oidc_audience: str | None = Field(None, description="what its tokens must be meant for, usually a client id")
    oidc_claim: str = Field("sub", description="claim that names the person; `email` counts only where it is verified")
    proxy_header: str | None = Field(
        None, pattern=r"^[a-z0-9-]+$", description="header in which a proxy names the person, e.g. x-auth-request-email"
    )
    proxy_addresses: list[Annotated[str, AfterValidator(_network)]] = Field(
        default_factory=list, description="addresses of that proxy; from anywhere else the header is not read"
    )

    @model_validator(mode="after")
    def _fits(self) -> LoginSettings:
        if self.oidc_issuer is not None and not self.oidc_audience:
            raise ValueError("oidc_audience: say what the tokens must be meant for")
        if self.oidc_issuer is not None and not self.oidc_issuer.startswith(_SAFE):
            raise ValueError("oidc_issuer: must be an https address")
        if self.proxy_header is not None and not self.proxy_addresses:
            raise ValueError("proxy_addresses: say from which addresses the header counts")
        return self


class ChannelSettings(_Part):
    """Where alerts go, and which: of all teams and kinds, if nothing is said."""

    kind: Literal["webhook", "slack", "email"]
    url: Reference | None = Field(None, description="webhook, slack: where the address is: env:NAME or file:PATH")
    host: str | None = Field(None, description="email: the mail server")
    port: int = Field(587, ge=1, le=65535)
    tls: Literal["starttls", "tls", "none"] = "starttls"
    sender: str | None = Field(None, description="email: the address that it comes from")
    to: list[str] = Field(default_factory=list, description="email: addresses that it goes to")
    user: str | None = None
    password: Reference | None = Field(None, description="email: where the password is: env:NAME or file:PATH")
    teams: list[str] | None = Field(None, description="only alerts of these teams")
    alerts: list[Literal["budget", "spend", "cache", "latency"]] | None = Field(None, description="only these kinds")

    @model_validator(mode="after")
    def _fits(self) -> ChannelSettings:
        if self.kind == "email" and not (self.host and self.sender and self.to):
            raise ValueError("email needs host, sender and to")
        if self.kind != "email" and self.url is None:
            raise ValueError(f"{self.kind} needs url, a reference such as env:ALERTS_URL")
        return self


class AlertSettings(_Part):
    """What is told, and where. Nothing is looked for until there is a channel."""

    channels: dict[str, ChannelSettings] = Field(default_factory=dict)
    budget_levels: list[Annotated[int, Field(ge=1, le=1000)]] = Field([50, 80, 100], description="per cent of a budget")
    spend_times: float = Field(3.0, gt=1, description="an hour that costs so many times the median hour of the week before")
    spend_least_usd: Number = Field(1.0, description="and at least so much")
    cache_points: float = Field(20.0, gt=0, le=100, description="percentage points by which the hour's cache share fell")
    cache_least_tokens: int = Field(100_000, ge=1, description="prompt tokens below which a share says nothing")
    first_token_p95_ms: dict[str, Ms] = Field(default_factory=dict, description="bound by lane, over the last hour")


class QueueSettings(_Part):
    """The gateway's own batches: calls that wait for cheap lanes and hours, and survive a restart."""

    store: Literal["disk", "database"] = Field(
        "disk", description="where they wait: in DATA, or in PostgreSQL (`database_url`), where all replicas share them"
    )
    max_calls: int = Field(100_000, gt=0, description="calls that wait at once; a batch that is more is refused")
    max_mib: int = Field(1_024, gt=0, description="files and answers kept")
    at_once: int = Field(8, gt=0, le=1_000, description="queued calls under way at once on ordinary lanes")
    collect_s: Number = Field(30.0, description="how long calls for a provider's batch are collected")
    poll_s: float = Field(30.0, gt=0, le=3_600, description="how often a provider is asked how its batch goes")
    keep_days: int = Field(30, gt=0, description="as long are files and batches kept")


class File(_Part):
    """The whole of `tollway.yaml`."""

    backends: dict[Name, BackendSettings] = Field(default_factory=dict)
    passthrough: dict[PathPrefix, str] = Field(
        default_factory=dict, description="path prefix to backend: relayed as it is, metered where usage can be recognised"
    )
    policies: str | None = Field(None, description="folder with one YAML file per team; default: the shipped examples")
    prices: list[str] = Field(default_factory=list, description="further price files; their rows win over the shipped ones")
    data: str = Field(".tollway", description="folder for the journal, the embedded database and first keys")
    database_url: str | None = Field(
        None, pattern=r"^(sqlite|postgres|postgresql)://", description="sqlite:///FILE or postgresql://...; default: in DATA"
    )
    redis_url: str | None = Field(
        None, description="redis://HOST:6379/0 (rediss:// is TLS; Valkey too) or a reference to it, env:NAME or file:PATH: "
        "budgets and rate limits that replicas share; default: each process has its own"
    )
    redis_ca: str | None = Field(None, description="file with the certificate authority of a rediss:// server")
    redis_away: Literal["lease", "closed"] = Field(
        "lease", description="while it is away: spend what was drawn ahead, or refuse calls that have a budget"
    )
    redis_timeout_ms: int = Field(200, ge=20, le=60_000, description="without an answer for so long it counts as away")
    clickhouse_url: Reference | None = Field(
        None, description="reference to http(s)://USER:PASSWORD@HOST:8123/DATABASE: a copy of the ledger for analyses"
    )
    organisation: str = Field("default", pattern=NAME, description="replicas of the same name share budgets in a Redis")
    database_upgrade: Literal["start", "command"] = Field(
        "start", description="when an older database is migrated: at the start, or only by `tollway db upgrade`"
    )
    admin_key: Reference | None = Field(None, description="default: made at the first start, in DATA/keys/admin")
    key_pepper: Reference | None = Field(
        None, description="secret under which keys are kept, the same for all replicas of a database; default: DATA/keys/pepper"
    )
    proxies: list[Annotated[str, AfterValidator(_network)]] = Field(
        default_factory=list,
        description="addresses of the proxies or balancers in front, which speak TLS and set X-Forwarded-For; from any other "
        "address that header is not read",
    )
    plain_http: bool = Field(
        False, description="listen to the network without TLS in front all the same: keys and prompts travel unencrypted"
    )
    login: LoginSettings = Field(default_factory=LoginSettings)
    alerts: AlertSettings = Field(default_factory=AlertSettings)
    queue: QueueSettings | None = Field(
        None, description="serve /v1/files and /v1/batches here, by a durable queue; without it they are passed on"
    )
    max_body_bytes: int = Field(32 * 1024 * 1024, gt=0)
    max_attempts: int = Field(2, ge=1, le=5, description="lanes that a call is tried at, one after the other")
    retries: int = Field(0, ge=0, le=5, description="how often lanes that refused for a moment are tried again")
    max_retry_wait_ms: float = Field(1_000.0, ge=0, le=60_000, description="longest wait before that, else it is passed on")
    prefix_index_mb: int = Field(64, ge=1, le=65_536, description="memory of the index of cached prefixes, oldest out first")
    known_parts_mb: int = Field(
        8, ge=1, le=4_096, description="memory of what is known of parts of prompts that were sent before, oldest out first"
    )
    known_turns_mb: int = Field(
        16, ge=0, le=65_536, description="memory for the latest bodies: a turn is read from where it goes on; 0: none"
    )
    share_text: bool = Field(
        False,
        description="replicas tell each other, through Redis, the tool lists and volatile lines of prompts that normalizing"
        " keeps; workers of one machine do so in any case",
    )
    explain_mb: int = Field(
        32, ge=0, le=65_536, description="memory of the outlines with which cache misses are explained; 0 explains none"
    )
    keepalive_ms: float = Field(15_000.0, ge=0, description="silence in a stream after which a ping is sent; 0 is never")
    durability: Literal["process", "power"] = Field(
        "process", description="what an entry survives: the death of the process, or a power cut too"
    )
    journal_max_mib: int = Field(
        4096, ge=64, description="most that the journal may hold while the database does not take it; then new calls get 503"
    )
    unready_s: float = Field(
        1.0, ge=0, le=600,
        description="after SIGTERM, how long calls are still taken while /readyz says no: a balancer's check interval",
    )  # fmt: skip
    max_connections: int = Field(12_000, gt=0, description="client connections of one process; more are closed")
    max_connections_per_address: int = Field(
        200, gt=0, description="of one client address, loopback excepted; raise it behind a balancer"
    )
    memory_max_mib: int | None = Field(
        None, gt=0,
        description="memory of one process: above 80 % batch calls are refused, above 95 % all new ones; default: what the "
        "system allows, divided among the workers",
    )  # fmt: skip
    drain_s: float = Field(30.0, gt=0, description="how long open answers may go on after SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
