"""Bits per byte on fixed windows; validation, ``mode=eval`` and reload checks share this code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.data.ahead import Rows
from elman.data.windows import NO_TOKEN, TokenRows
from elman.evaluation.metrics import bits_per_byte
from elman.models.language_model import LanguageModel
from elman.models.state import State

Stoppable = Callable[[], contextlib.AbstractContextManager[None]]
Scored = NDArray[np.uint8] | TokenRows
"""Rows to score: bytes [b, t+1], or other tokens."""
Progress = Callable[[int], None]
"""Called with how much was predicted so far."""


def silent(predicted: int) -> None:
    """The default progress: show nothing."""


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Return the autocast context of ``train.precision`` (auto: bf16 on a GPU, fp32 on a CPU)."""
    enabled = uses_bf16(device, precision)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def uses_bf16(device: torch.device, precision: str) -> bool:
    """Return whether ``train.precision`` means bf16 on this device."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def to_device(rows: Rows, device: torch.device) -> Tensor:
    """Return a batch on ``device`` without waiting for the copy."""
    tokens = torch.from_numpy(rows)
    if device.type == "cuda":
        return tokens.pin_memory().to(device, non_blocking=True)
    return tokens


def score(
    model: LanguageModel,
    batches: Iterable[Scored],
    device: torch.device,
    precision: str,
    progress: Progress = silent,
    stoppable: Stoppable = contextlib.nullcontext,
) -> tuple[float, int]:
    """Return (bits per predicted byte, predicted bytes) over ``batches`` of [b, t+1] bytes.

    Every row starts from zero state. The mean is over bytes, so rows of different length count by
    their length. The model is in evaluation mode only during the call. ``stoppable`` makes the
    context of each forward pass. That context may raise an exception at any point; then there is
    no number.
    """
    return _score(model, batches, device, precision, progress, stoppable, carry=False)


def score_in_order(
    model: LanguageModel,
    chunks: Iterable[Scored],
    device: torch.device,
    precision: str,
    progress: Progress = silent,
) -> tuple[float, int]:
    """Return the same over ``chunks`` of one text, each from the state of the chunk before."""
    return _score(model, chunks, device, precision, progress, contextlib.nullcontext, carry=True)


@torch.no_grad()
def _score(
    model: LanguageModel,
    batches: Iterable[Scored],
    device: torch.device,
    precision: str,
    progress: Progress,
    stoppable: Stoppable,
    carry: bool,
) -> tuple[float, int]:
    each = _nats(model, batches, device, precision, progress, stoppable, carry)
    total, predicted = 0.0, 0
    for nats, count in each:
        total, predicted = total + nats, predicted + count
    return bits_per_byte(total / predicted), predicted


@torch.no_grad()
def nats_of_batches(
    model: LanguageModel,
    batches: Iterable[Scored],
    device: torch.device,
    precision: str,
    progress: Callable[[int], None] = lambda predicted: None,
    stoppable: Stoppable = contextlib.nullcontext,
) -> list[tuple[float, int]]:
    """Return (nats, predicted bytes) of each batch, whose sums :func:`score` divides."""
    return list(_nats(model, batches, device, precision, progress, stoppable, carry=False))


def _nats(
    model: LanguageModel,
    batches: Iterable[Scored],
    device: torch.device,
    precision: str,
    progress: Callable[[int], None],
    stoppable: Stoppable,
    carry: bool,
) -> Iterator[tuple[float, int]]:
    was_training = model.training
    model.eval()
    predicted = 0
    states: list[State] | None = None
    try:
        for rows in batches:
            with autocast(device, precision), stoppable():
                if isinstance(rows, TokenRows):
                    nats, carried = _nats_of_tokens(model, rows, states, device)
                    count = rows.n_bytes
                else:
                    loss, carried = model.loss(to_device(rows, device), states)
                    count = rows.shape[0] * (rows.shape[1] - 1)
                    nats = loss.double() * count
            states = carried if carry else None
            predicted += count
            yield float(nats.cpu()), count
            progress(predicted)
    finally:
        model.train(was_training)


def _nats_of_tokens(
    model: LanguageModel, rows: TokenRows, states: list[State] | None, device: torch.device
) -> tuple[Tensor, list[State]]:
    """Return the summed nats of the predicted tokens, in fp64, and the states behind them.

    A row that has ended passes tokens that do not count.
    """
    ids_bt1 = to_device(rows.ids_bn, device).long()
    inputs_bt, targets_bt = ids_bt1[:, :-1].clamp(min=0), ids_bt1[:, 1:]
    if rows.read_b is not None:
        read_b1 = to_device(rows.read_b, device)[:, None]
        places_t = torch.arange(targets_bt.shape[1], device=device)
        targets_bt = targets_bt.masked_fill(places_t < read_b1, NO_TOKEN)
    nats_bt, carried = model(inputs_bt, states, targets_bt=targets_bt.clamp(min=0), each=True)
    return nats_bt.double().masked_fill(targets_bt == NO_TOKEN, 0).sum(), carried
