"""Runs under the interpreter of `.venv-clients`, which has transformers and tokenizers and borrows the project's torch.

`oracle.py SITE checkpoints FOLDER`: tiny random checkpoints, each with prompts, greedy continuations and last logits.
`oracle.py SITE tokenize GGUF-META TEXTS OUT`: the file's tokenizer rebuilt with `tokenizers`, and what it makes of the texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(sys.argv[1])  # behind our own packages: only torch is taken from there

SHAPE: dict[str, Any] = {
    "vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


def checkpoints(folder: Path) -> None:
    """One folder per kind: config.json, model.safetensors (one of them in shards), expected.json."""
    import torch
    import transformers as tf

    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, {"tie_word_embeddings": False}),
        "llama-tied-llama3-rope": (tf.LlamaConfig, tf.LlamaForCausalLM, {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
        "llama-linear-rope": (tf.LlamaConfig, tf.LlamaForCausalLM, {"rope_parameters": LINEAR}),
        "qwen2-bias": (tf.Qwen2Config, tf.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
        "qwen3-norms": (tf.Qwen3Config, tf.Qwen3ForCausalLM, {"head_dim": 32, "tie_word_embeddings": False}),
    }
    for seed, (name, (config, model_class, extra)) in enumerate(kinds.items()):
        torch.manual_seed(seed)
        model = model_class(config(**(SHAPE | extra))).eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                if key.endswith(("bias", "norm.weight")):
                    value.add_(torch.randn_like(value) * 0.3)
        model.save_pretrained(folder / name, max_shard_size="100KB" if name == "llama" else "5GB")
        model.generation_config.eos_token_id = None
        expected = []
        for length in (1, 7, 70, 200):
            ids = torch.randint(3, 259, (1, length))
            with torch.inference_mode():
                out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0)
                logits = model(out).logits[0, length - 1 : -1]
            expected.append({"prompt": ids[0].tolist(), "tokens": out[0, length:].tolist(), "logits": logits.tolist()})
        (folder / name / "expected.json").write_text(json.dumps(expected))


def tokenize(meta: Path, texts: Path, out: Path) -> None:
    """Ids of each text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    told = json.loads(meta.read_text())
    vocabulary = {token: index for index, token in enumerate(told["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in told["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    found = [encoding.ids for encoding in tokenizer.encode_batch(json.loads(texts.read_text()), add_special_tokens=False)]
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    {"checkpoints": checkpoints, "tokenize": tokenize}[sys.argv[2]](*map(Path, sys.argv[3:]))
