"""Runs under the interpreter of `.venv-clients`: llama.cpp's server on a GGUF file until its input ends."""
from __future__ import annotations

import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx, params.port = sys.argv[1], 2, 2048, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.endpoint_metrics = params.endpoint_slots = True
server = xllamacpp.Server(params)
print("ready", server.listening_address, flush=True)
sys.stdin.read()
