"""Model servers of one's own: how busy they are, what their caches hold, and how they are told salt and priority.

One `Engine` per product is data plus a function that reads its figures; `watch.py` asks them, `kv_events.py` decodes what
they publish. What an engine does not say is None, never 0. Names and shapes: vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.2,
llama.cpp of late 2026; older names that are still met in the field are read too.
"""
from __future__ import annotations

from gateway.backends.engines.embedded import EMBEDDED
from gateway.backends.engines.figures import Capabilities, Engine, Intent, Load, Sample, between
from gateway.backends.engines.llamacpp import LLAMACPP
from gateway.backends.engines.scale_out import DYNAMO, LLM_D, RAY
from gateway.backends.engines.sglang import SGLANG
from gateway.backends.engines.trtllm import TRTLLM
from gateway.backends.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (EMBEDDED, VLLM, SGLANG, TRTLLM, LLAMACPP, RAY, LLM_D, DYNAMO)
}

__all__ = ["ENGINES", "Capabilities", "Engine", "Intent", "Load", "Sample", "between"]
