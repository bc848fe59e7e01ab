"""Other engines with the same weights, one process each: reads JSON lines, answers how many seconds it took.

`python -m benchmarks.peers NAME THREADS`, run by `benchmarks.engine` with the interpreter of `make peers`. A line is
{"prompts": [[ids], ...], "tokens": n}: prefill the prompts, then n more tokens of each, greedily. The answer has the
seconds of both parts. `bare` is our own model without scheduler and server; it runs on the project's interpreter.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Timed = tuple[float, float]
Run = Callable[[list[list[int]], int], Timed]


def transformers(threads: int, kind: str) -> Run:
    """Hugging Face's Llama with `generate` and SDPA, the GGUF file's weights dequantized."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from inference.gguf import read_gguf
    from inference.weights import bundled_model, read_config

    torch.set_num_threads(threads)
    file = read_gguf(bundled_model())
    config = read_config(file)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary, hidden_size=config.width, intermediate_size=config.ffn,
            num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context, rms_norm_eps=config.eps, rope_theta=config.rope_base,
            tie_word_embeddings=True, attn_implementation="sdpa",
        )
    )  # fmt: skip
    state = {_hf_name(name): torch.from_numpy(file.dequantize(name)) for name in file.tensors}
    for name, tensor in state.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # neighbours turn together in the file, halves in theirs
            state[name] = tensor.view(-1, config.head_size // 2, 2, config.width).transpose(1, 2).reshape(tensor.shape)
    model.load_state_dict(state, strict=False)
    model = model.to(getattr(torch, kind)).eval()

    def run(prompts: list[list[int]], tokens: int) -> Timed:
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)

        def generate(count: int) -> float:
            start = time.perf_counter()
            with torch.inference_mode():
                model.generate(
                    ids, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count,
                    eos_token_id=None, pad_token_id=0,
                )  # fmt: skip
            return time.perf_counter() - start

        prefill = generate(1)
        return prefill, generate(1 + tokens) - prefill if tokens else 0.0

    return run


def _hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    parts = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in whole:
        return whole[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def llama_cpp(threads: int) -> Run:
    """llama.cpp's own HTTP server with eight slots, from a wheel; the file as it is. Its own timings count."""
    import httpx
    import xllamacpp

    from inference.weights import bundled_model

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx, params.port = str(bundled_model()), 8, 8 * 2304, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.endpoint_metrics = params.endpoint_slots = True
    server = xllamacpp.Server(params)

    def ask(prompt: list[int], tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True}
        answer = httpx.post(f"{server.listening_address}/completion", json=body, timeout=600).raise_for_status()
        found: dict[str, Any] = answer.json()["timings"]
        return found

    def run(prompts: list[list[int]], tokens: int) -> Timed:
        start = time.perf_counter()
        for prompt in prompts:
            ask(prompt, 1)
        prefill = time.perf_counter() - start
        if not tokens:
            return prefill, 0.0
        with ThreadPoolExecutor(len(prompts)) as pool:
            told = list(pool.map(lambda prompt: ask(prompt, tokens + 1), prompts))
        return prefill, len(prompts) * tokens / sum(t["predicted_n"] / t["predicted_ms"] * 1e3 for t in told)

    return run


def bare(threads: int) -> Run:
    """Our model step by step on paged keys and values, with nothing around it."""
    import torch

    from inference.attention import Span
    from inference.blocks import BLOCK
    from inference.gguf import read_gguf
    from inference.loading import load_model
    from inference.model import Batch
    from inference.weights import GGUFWeights, bundled_model, read_config

    torch.set_num_threads(threads)
    file = read_gguf(bundled_model())
    config = read_config(file)
    model = load_model(config, GGUFWeights(file))
    blocks_each = 2304 // BLOCK
    cache = model.cache(8 * blocks_each, BLOCK, torch.float16)
    tables = [range(1 + index * blocks_each, 1 + (index + 1) * blocks_each) for index in range(8)]

    def forward(rows: list[tuple[list[int], int]], decode: bool) -> list[int]:
        batch = Batch([], [], [])
        for index, (tokens, start) in enumerate(rows):
            table = tables[index][: -(-(start + len(tokens)) // BLOCK)]
            batch.spans.append(Span(len(batch.ids), len(tokens), start, table, decode))
            batch.ids.extend(tokens)
            batch.wanted.extend(range(len(batch.ids) - 1, len(batch.ids)))
        return model.forward(batch, cache).numpy().argmax(-1).tolist()

    def run(prompts: list[list[int]], tokens: int) -> Timed:
        start, newest = time.perf_counter(), []
        with torch.inference_mode():
            for prompt in prompts:
                for at in range(0, len(prompt), 256):
                    last = forward([(prompt[at : at + 256], at)], decode=False)
                newest += last
            middle = time.perf_counter()
            for step in range(tokens):
                newest = forward([([t], len(prompts[s]) + step) for s, t in enumerate(newest)], decode=True)
        return middle - start, time.perf_counter() - middle

    return run


PEERS: dict[str, Callable[[int], Run]] = {
    "bare": bare,
    "llama.cpp": llama_cpp,
    "transformers bf16": lambda threads: transformers(threads, "bfloat16"),
    "transformers fp32": lambda threads: transformers(threads, "float32"),
}


def main() -> None:
    """Answer lines until the input ends."""
    name, threads = sys.argv[1], int(sys.argv[2])
    try:
        run = PEERS[name](threads)
    except ImportError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        prefill, decode = run(asked["prompts"], asked["tokens"])
        print(json.dumps({"prefill": prefill, "decode": decode}), flush=True)


if __name__ == "__main__":
    main()
