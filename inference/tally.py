"""Counts what the engine does, each token once, in the words of `metrics`."""

from collections.abc import Sequence
from dataclasses import dataclass

from inference.blocks import BLOCK
from inference.metrics import Metrics
from inference.scheduler import FAST, STANDARD, Request, Work
from inference.spill import Spill


@dataclass(slots=True)
class Tokens:
    """When a request got its first and its last token, and how many."""

    first: float | None = None
    last: float = 0.0
    generated: int = 0


class Tally:
    """Written by the engine's thread. `prefill_speed`: prompt tokens per second, lately."""

    def __init__(self) -> None:
        self.metrics, self.prefill_speed = Metrics(), 400.0
        self.metrics.start_at_zero(lane.tier for lane in (FAST, STANDARD))

    def prompt(self, request: Request, tokens: int) -> None:
        """So many tokens of its prompt were computed or found."""
        tier = request.lane.tier
        self.metrics.add("prompt_tokens_total", tokens, service_tier=tier)
        self.metrics.add("prompt_tokens_cached_total", request.cached, service_tier=tier)
        self.metrics.add("prefix_cache_queries_total", tokens)
        self.metrics.add("prefix_cache_hits_total", request.cached)

    def tokens(self, told: Tokens, work: Work, kept: int, now: float) -> None:
        """A work gave its request `kept` tokens."""
        request, tier = work.request, work.request.lane.tier
        if told.first is None:
            told.first = now
            self.prompt(request, request.prompt)
            self.metrics.observe("time_to_first_token_seconds", now - request.arrival, service_tier=tier)
            queued = (request.admitted or now) - request.arrival
            self.metrics.observe("request_queue_time_seconds", queued, service_tier=tier)
        else:
            self.metrics.observe("inter_token_latency_seconds", (now - told.last) / kept, kept, service_tier=tier)
        told.last = now
        told.generated += kept
        self.metrics.add("generation_tokens_total", kept, service_tier=tier)
        if work.drafts:
            self.metrics.add("spec_decode_num_drafts_total")
            self.metrics.add("spec_decode_num_draft_tokens_total", len(work.drafts))
            self.metrics.add("spec_decode_num_accepted_tokens_total", kept - 1)

    def step(self, works: Sequence[Work], seconds: float, preemptions: int, spill: Spill | None) -> None:
        """A forward pass, and what the scheduler and the spill have come to."""
        decode = sum(len(work.tokens) for work in works if work.decode)
        prefill = sum(len(work.tokens) for work in works if not work.decode)
        self.metrics.add("engine_steps_total")
        self._up_to("num_preemptions_total", preemptions)
        if spill is not None:
            self._up_to("kv_spill_stored_tokens_total", spill.stored * BLOCK)
            self._up_to("kv_spill_hit_tokens_total", spill.restored * BLOCK)
        self.metrics.add("step_seconds_total", seconds)
        self.metrics.add("computed_rows_total", decode, kind="decode")
        self.metrics.add("computed_rows_total", prefill, kind="prefill")
        if prefill >= 64:
            self.prefill_speed += 0.1 * (prefill / seconds - self.prefill_speed)

    def ended(self, request: Request, reason: str, now: float) -> None:
        """The request has its last delta."""
        tier = request.lane.tier
        self.metrics.add("request_success_total", finished_reason=reason, service_tier=tier)
        self.metrics.observe("e2e_request_latency_seconds", now - request.arrival, service_tier=tier)

    def refused(self, reason: str) -> None:
        """Somebody was turned away at the door."""
        self.metrics.add("admission_rejections_total", reason=reason)

    def _up_to(self, name: str, total: int) -> None:
        self.metrics.add(name, total - self.metrics.value(name))
