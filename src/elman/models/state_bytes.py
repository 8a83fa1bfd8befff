"""Counts the bytes of the state that one layer of a model carries from byte to byte."""

from __future__ import annotations

import math

import torch

from elman.models.build import build_model
from elman.models.cells.common.mixer import Mixer
from elman.models.state import STORED
from elman.models.state_sizes import StateSize
from elman.sections.model import ModelConfig

_WIDE_BYTES = 4
BF16_BYTES = 2


def state_size(model: ModelConfig, *, narrow_bytes: int = BF16_BYTES) -> StateSize | None:
    """Return how large the state of one layer is, for one row, from the shapes of its parts.

    Args:
        model: The model; one layer of it is built without storage.
        narrow_bytes: Bytes of a number of the projections; states proper are fp32.

    Returns:
        Its size; None if the layer does not say what its state is.
    """
    config = model.model_copy(update={"depth": 1, "expected_params": None})
    with torch.random.fork_rng(devices=[]):
        (layer,) = build_model(config, device="meta").layers
    if not isinstance(layer, Mixer):
        return None
    try:
        shapes = layer.state_shapes()
    except NotImplementedError:
        return None
    fixed = per_byte = 0
    for name, shape in shapes.items():
        lengths = [length for length in shape if length is not None]
        size = math.prod(lengths) * (narrow_bytes if name in STORED else _WIDE_BYTES)
        if len(lengths) < len(shape):
            per_byte += size
        else:
            fixed += size
    context = model.options.get("context", 0)
    assert isinstance(context, int)
    # The newest byte is no state.
    return StateSize(fixed, per_byte, context - 1 if context else None)
