"""Answers of a task: their loss, and how many of them are right.

Shapes: b rows, t positions, v symbols; rows are [b, 2, t], the inputs and the answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elman.data.files import Bytes
from elman.data.tasks.batches import TaskData
from elman.evaluation.metrics import bits_per_byte
from elman.evaluation.validation import Progress, Stoppable, autocast, silent, to_device
from elman.models.language_model import LanguageModel
from elman.ops.common.precision import wide_dtype
from elman.sections.tasks import IGNORED

# A pass that learns nothing keeps one layer's tensors only, so it can have more positions.
_TIMES_A_TRAINED_BATCH = 4


class Answers(NamedTuple):
    """What a model answered.

    Attributes:
        bits: Mean bits per answer.
        answered: Number of answers.
        accuracy: Share of them that are right: the most probable symbol is the answer.
    """

    bits: float
    answered: int
    accuracy: float


@torch.no_grad()
def score_answers(
    model: LanguageModel,
    batches: Iterable[Bytes],
    device: torch.device,
    precision: str,
    progress: Progress = silent,
    stoppable: Stoppable = contextlib.nullcontext,
) -> Answers:
    """Return how a model answers rows of a task, each from zero state.

    The arguments are those of :func:`~.validation.score`; ``progress`` gets the positions read.
    """
    was_training = model.training
    model.eval()
    totals = torch.zeros(3, dtype=torch.float64)
    read = 0
    try:
        for rows in batches:
            rows_b2t = to_device(rows, device)
            with autocast(device, precision), stoppable():
                logits_btv, _ = model(rows_b2t[:, 0])
                totals += _totals(logits_btv, rows_b2t[:, 1].long()).cpu()
            read += rows.shape[0] * rows.shape[2]
            progress(read)
    finally:
        model.train(was_training)
    nats, right, count = totals.tolist()
    return Answers(bits_per_byte(nats / count), int(count), right / count)


def _totals(logits_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Return, as float64: the sum of nats, the right answers, all answers."""
    wide = logits_btv.to(wide_dtype(logits_btv.dtype)).flatten(0, 1)
    nats = functional.cross_entropy(
        wide, targets_bt.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    counts_bt = targets_bt != IGNORED
    right_bt = (logits_btv.argmax(dim=-1) == targets_bt) & counts_bt
    return torch.stack([nats.double(), right_bt.sum().double(), counts_bt.sum().double()])


def rows_at_once(batch_size: int, trained_length: int, length: int) -> int:
    """Return how many rows of a length fit where a training batch of the trained length did."""
    return max(1, _TIMES_A_TRAINED_BATCH * batch_size * trained_length // length)


def accuracy_at(
    model: LanguageModel,
    data: TaskData,
    length: int,
    rows: int,
    device: torch.device,
    precision: str,
    progress: Progress = silent,
    stoppable: Stoppable = contextlib.nullcontext,
) -> Answers:
    """Return how a model answers the test's rows of one length.

    Args:
        model: The model.
        data: The task.
        length: Positions of a row.
        rows: Rows at a time.
        device: Where the model is.
        precision: As ``train.precision``.
        progress: Called with the positions read so far.
        stoppable: As of :func:`~.validation.score`.
    """
    batches = data.test_rows(length, rows)
    return score_answers(model, batches, device, precision, progress, stoppable)
