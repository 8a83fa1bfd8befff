"""What a run learns to predict: the next byte of a text, or the answers of a task.

Shapes: b rows, t predicted positions. A batch of text is [b, t+1] bytes, one of a task [b, 2, t]
symbols: the inputs, and the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from elman.config.run_config import RunConfig
from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.sections.tasks import TaskConfig

Loss = Callable[[Tensor, Sequence[State] | None], tuple[Tensor, list[State]]]
"""From a batch and states to the mean loss in nats, and the states after the batch."""


def batch_shape(config: RunConfig, rows: int) -> tuple[int, ...]:
    """Return the shape of a batch of ``rows`` training rows."""
    length = config.train.chunk_size
    return (rows, 2, length) if isinstance(config.data, TaskConfig) else (rows, length + 1)


def loss_of(config: RunConfig, model: LanguageModel) -> Loss:
    """Return the function that is minimized: mean nats per byte, or per answer."""
    if not isinstance(config.data, TaskConfig):
        return model.loss

    def answers(rows_b2t: Tensor, states: Sequence[State] | None) -> tuple[Tensor, list[State]]:
        return model.answer_loss(rows_b2t[:, 0], rows_b2t[:, 1], states)

    return answers
