"""Which program runs a model's weights here: C where it can, torch otherwise, or a GPU's kernels."""

import logging

import torch

from inference.cuda import CudaLlama
from inference.linear import KindUnavailable
from inference.model import Llama, Model
from inference.native import NativeLlama, Unavailable
from inference.weights import ModelConfig, Weights

log = logging.getLogger(__name__)


def load_model(config: ModelConfig, weights: Weights, kind: str = "auto", device: str = "cpu") -> Model:
    """Ready to run. A kind that is named runs in torch; KindUnavailable where the device or the kind is not there."""
    with torch.inference_mode():
        if device != "cpu":
            return CudaLlama(config, weights, _gpu(device))
        if kind != "auto":
            return Llama(config, weights, kind)
        try:
            return NativeLlama(config, weights)
        except Unavailable as error:
            log.warning("torch runs the model: no native step: %s", error)
            model = Llama(config, weights)
            model.report["native"] = f"unavailable: {error}"
            return model


def _gpu(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise KindUnavailable(f"--device {name}: {error}") from error
    if device.type != "cuda" or not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise KindUnavailable(f"--device {device}: there is no such GPU here, or this torch was built without CUDA")
    return device
