"""Few rows of great length: whether layers compute side by side, and whether more rows would pay.

Both are read off the plans of the kernels: how many calls of a recurrence a GPU runs at a time.
"""

from __future__ import annotations

import torch

from elman.models import wavefront
from elman.models.language_model import LanguageModel
from elman.sections.training import TrainConfig

_LONG = 1024
"""Bytes of a row from which on nothing is said to be short."""


def time_parts(model: LanguageModel, rows: int, train: TrainConfig, device: torch.device) -> int:
    """Return in how many parts the time of rows passes through the layers of a model.

    Args:
        model: The model.
        rows: Rows of a pass.
        train: Group ``train``.
        device: Where it is trained.
    """
    at_once = _calls_at_once(model, rows, train, device)
    return wavefront.parts_of(train.chunk_size, len(model.layers), at_once)


def rows_note(
    model: LanguageModel, rows: int, train: TrainConfig, device: torch.device
) -> str | None:
    """Return a line that says which shape of a batch would be faster, or None.

    It speaks only where a GPU is known to run more rows in the time of these, and the layers do not
    compute side by side.

    Args:
        model: The model.
        rows: Rows of a pass.
        train: Group ``train``.
        device: Where it is trained.
    """
    if model.time_parts > 1 or train.chunk_size < _LONG:
        return None
    times = 1 << int(_calls_at_once(model, rows, train, device)).bit_length() >> 1
    if times < 2:
        return None
    return (
        f"the GPU would run the recurrence of {times} times as many rows in the same time: "
        f"train.batch_size={train.batch_size * times} train.chunk_size={train.chunk_size // times} "
        "is faster for as many bytes a step"
    )


def _calls_at_once(
    model: LanguageModel, rows: int, train: TrainConfig, device: torch.device
) -> float:
    if device.type != "cuda":
        return 1
    if device == torch.device("cuda"):
        device = torch.device("cuda", torch.cuda.current_device())
    dtype = torch.float32 if train.precision == "fp32" else torch.bfloat16
    return model.calls_at_once(rows, dtype, device)
