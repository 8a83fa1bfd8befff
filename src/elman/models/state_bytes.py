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
        Its size, of a mixed stack the mean over its layers, rounded up, with the largest limit of
        those that grow; None if a layer does not say what its state is.
    """
    if not (sizes := _of_layers(model, narrow_bytes)):
        return None
    if len(sizes) == 1:
        return sizes[0][1]
    fixed = sum(layers * size.fixed for layers, size in sizes)
    per_byte = sum(layers * size.per_byte for layers, size in sizes)
    limits = [size.most for _, size in sizes if size.per_byte]
    most = None if None in limits else max(filter(None, limits), default=None)
    return StateSize(-(-fixed // model.depth), -(-per_byte // model.depth), most)


def state_bytes(model: ModelConfig, positions: int, *, narrow_bytes: int) -> int | None:
    """Return the bytes of one layer's state after so many bytes of context, for one row.

    Args:
        model: As of :func:`state_size`.
        positions: Bytes of context.
        narrow_bytes: As of :func:`state_size`.

    Returns:
        Of a mixed stack the mean over its layers, each with its own limit, rounded up.
    """
    sizes = _of_layers(model, narrow_bytes)
    whole = sum(layers * size.after(positions) for layers, size in sizes)
    return -(-whole // model.depth) if sizes else None


def _of_layers(model: ModelConfig, narrow_bytes: int) -> list[tuple[int, StateSize]]:
    """Return for each kind of layer how many there are, and its size; nothing if one is unknown."""
    parts = model.parts()
    found = [(part.depth, _of_one_cell(part, narrow_bytes)) for part in parts]
    sizes = [(layers, size) for layers, size in found if size is not None]
    return sizes if len(sizes) == len(parts) else []


def _of_one_cell(model: ModelConfig, narrow_bytes: int) -> StateSize | None:
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
