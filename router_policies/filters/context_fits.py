"""Prompt and answer must fit the model's window on this lane.

The prompt is an estimate, so a near miss is left to the backend, which counts exactly: only what is over by more than
the estimate's own error is refused here.
"""

from router_policies.types import Ask, Lane, Terms

ESTIMATE_ERROR = 0.4  # the worst margin among the tokenizers that estimates are made with


def context_fits(ask: Ask, lane: Lane, terms: Terms) -> str | None:
    window = lane.models[terms.model].window
    if window is None or ask.prompt_tokens * (1 - ESTIMATE_ERROR) <= window:
        return None
    return f"needs about {ask.prompt_tokens} tokens and the answer, holds {window}"
