"""Counts the bytes of the state that one layer of a model carries from byte to byte."""

from __future__ import annotations

import math

import torch

from elman.models.build import build_model
from elman.models.cells.common.mixer import Mixer
from elman.models.state import STORED
from elman.sections.model import ModelConfig

_WIDE_BYTES = 4


def state_bytes(model: ModelConfig, positions: int, *, narrow_bytes: int) -> int | None:
    """Return the bytes of the state of one layer for one row, from the shapes of its parts.

    Args:
        model: The model; one layer of it is built without storage.
        positions: Length of a row. A state that grows with the row, as that of an attention, is
            counted at its end; with ``model.context`` it holds one position less than that.
        narrow_bytes: Bytes of a number of the projections; states proper are fp32.

    Returns:
        The bytes; None if the layer does not say what its state is.
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
    context = model.options.get("context", 0)
    assert isinstance(context, int)
    grown = min(context - 1, positions) if context else positions  # the newest byte is no state
    return sum(
        math.prod(grown if length is None else length for length in shape)
        * (narrow_bytes if name in STORED else _WIDE_BYTES)
        for name, shape in shapes.items()
    )
