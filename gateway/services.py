"""Everything a call is served with, made once by `app.py` and passed down; no globals."""
from __future__ import annotations

from dataclasses import dataclass, field

from gateway.access.keys import KeyRing
from gateway.access.people import People
from gateway.admission import Admission
from gateway.backends.engines.live import Live
from gateway.backends.fleet import Fleet
from gateway.backends.stored import Stored
from gateway.backends.upstream import Upstream
from gateway.budgets import Budgets, Hold
from gateway.idempotency import Idempotency
from gateway.key_table import KeyTable
from gateway.lanes.traffic import Traffic
from gateway.lanes.trial import Trials
from gateway.ledger import Entry
from gateway.ledger.journal import Journal
from gateway.ledger.last_known import LastKnown
from gateway.ledger.reports import Reports
from gateway.ledger.sql import SqlLedger
from gateway.memory_table import MemoryTable
from gateway.metering.price_files import PriceFiles
from gateway.metering.prices import PriceBook
from gateway.metrics import Metrics
from gateway.missed import Misses
from gateway.normalize import Memory
from gateway.people_table import PeopleTable
from gateway.planner import Planner
from gateway.prefix.index import PrefixIndex
from gateway.prefix.kv_events import KvWatch
from gateway.prewarming import PreWarmer
from gateway.progress import ProgressNotes
from gateway.settings import Settings
from gateway.settings_source import SettingsSource
from gateway.warming import Warmer
from gateway.watch import Watch
from gateway.workers.far import FarHouse
from router_policies.files import PolicyStore
from router_policies.sensitivity import Learnt


@dataclass(slots=True, kw_only=True)
class Services:
    """One set per process."""

    settings: Settings
    settings_source: SettingsSource
    keys: KeyRing
    key_table: KeyTable
    people: People
    people_table: PeopleTable
    watch: Watch
    policies: PolicyStore
    fleet: Fleet
    upstream: Upstream
    prices: PriceBook
    price_files: PriceFiles
    budgets: Budgets
    journal: Journal
    ledger: SqlLedger
    reports: Reports
    metrics: Metrics
    salt: bytes
    """Secret from which cache salts are made."""
    planner: Planner
    forms: Memory = field(default_factory=Memory)
    live: Live
    """Engines of one's own."""
    index: PrefixIndex = field(default_factory=PrefixIndex)
    kv: KvWatch
    """What those engines say of their caches, for the index."""
    warmer: Warmer
    pre_warmer: PreWarmer
    misses: Misses = field(default_factory=Misses)
    traffic: Traffic = field(default_factory=Traffic)
    trials: Trials = field(default_factory=Trials)
    learnt: Learnt | None = None
    """Names a class where neither client nor rule does; made by `tollway sensitivity train`."""
    stored: Stored
    memory: MemoryTable
    idempotency: Idempotency
    progress: ProgressNotes
    late: dict[str, tuple[Entry, Hold | None]] = field(default_factory=dict)
    """Attempts whose usage is still to come, by the id of the answer that is being made; bounded."""
    admission: Admission = field(default_factory=Admission)
    house: FarHouse | None = None
    """Where this process is one of several workers."""
    last_known: LastKnown = field(default_factory=LastKnown)
    draining: bool = False
