"""What a run learns to predict: the next byte of a text, or the answers of a task.

Shapes: b rows, t predicted positions. A batch of text is [b, t+1] bytes, one of a task [b, 2, t]
symbols: the inputs, and the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.sections.data import AnyData
from elman.sections.tasks import TaskConfig
from elman.sections.training import TrainConfig

Loss = Callable[[Tensor, Sequence[State] | None], tuple[Tensor, list[State]]]
"""From a batch and states to the mean loss in nats, and the states after the batch."""

Mark = Callable[[str], None]
"""Called with the name of a part of a step when that part ends."""


def unmarked(part: str) -> None:
    """The default mark: do nothing."""


class Objective(NamedTuple):
    """What is minimized.

    Args:
        loss: Mean nats per byte, or per answer; compiled if ``train.compile`` says so.
        batch_shape: The shape of a batch.
    """

    loss: Loss
    batch_shape: tuple[int, ...]


def objective_of(data: AnyData, train: TrainConfig, model: LanguageModel, rows: int) -> Objective:
    """Return what a run minimizes.

    Args:
        data: Group ``data``.
        train: Group ``train``.
        model: The model.
        rows: Rows of a batch.
    """
    loss = loss_of(data, model)
    shape = batch_shape(data, train.chunk_size, rows)
    return Objective(torch.compile(loss) if train.compile else loss, shape)


def batch_shape(data: AnyData, chunk_size: int, rows: int) -> tuple[int, ...]:
    """Return the shape of a batch of ``rows`` training rows."""
    return (rows, 2, chunk_size) if isinstance(data, TaskConfig) else (rows, chunk_size + 1)


def loss_of(data: AnyData, model: LanguageModel) -> Loss:
    """Return the function that is minimized: mean nats per byte, or per answer."""
    if not isinstance(data, TaskConfig):
        return model.loss

    def answers(rows_b2t: Tensor, states: Sequence[State] | None) -> tuple[Tensor, list[State]]:
        return model.answer_loss(rows_b2t[:, 0], rows_b2t[:, 1], states)

    return answers
