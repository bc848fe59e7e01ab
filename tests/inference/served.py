"""The tiny model behind the engine's real HTTP face, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import uvicorn

from inference.app import App, Served
from inference.engine import Engine
from inference.http import Protocol
from inference.storage import Storage
from tests.build import free_port
from tests.inference.tiny import model, tokenizer
from tests.upstream import until


@contextmanager
def served(kv_tokens: int = 65_536, **options: Any) -> Iterator[str]:
    """Its address; `options` are the engine's."""
    engine = Engine(model("fp32"), tokenizer(), Storage(model("fp32"), kv_tokens, torch.float32), threads=1, **options)
    engine.start()
    app, port = App(Served(engine, "tiny", "f", 0, {})), free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, http=Protocol, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the engine's server")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.force_exit = server.should_exit = True
        thread.join(20)
        engine.stop()
