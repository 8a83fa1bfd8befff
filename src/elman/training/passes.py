"""Forward and backward pass of one micro-batch, operation by operation.

Shapes: b rows, t predicted bytes; a batch is [b, t+1] bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from elman.config.run_config import RunConfig
from elman.evaluation.validation import autocast
from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.training.optim.optimizers import TrainingOptimizer

Mark = Callable[[str], None]
"""Called with its name when a part of a step ends."""


def unmarked(part: str) -> None:
    """What training does when a part of a step ends: nothing."""


class TrainingPass(Protocol):
    """Forward and backward pass of a micro-batch; the gradients land in the parameters."""

    def prepare(self, states: Sequence[State] | None) -> None:
        """Do once what the first pass would take longer for; weights and gradients stay as are.

        Args:
            states: Those that the first pass will be given.
        """

    def run(
        self, tokens_bt1: Tensor, states: list[State] | None, *, fresh: bool, mark: Mark
    ) -> tuple[Tensor, list[State] | None]:
        """Compute one micro-batch.

        Args:
            tokens_bt1: Bytes, uint8, on the device.
            states: What the last call returned, or what was saved of it; None starts the rows.
            fresh: Whether this is the first micro-batch of its optimizer step: its gradients
                replace those that are there, later ones are added.
            mark: Told when the forward pass ends, if it ends apart from the backward pass.

        Returns:
            The loss, nats per byte, and the states after the batch with ``train.tbptt``, without
            None. Both hold until the next call.
        """
        ...


class EagerPass:
    """A pass whose operations Python calls one after the other.

    Args:
        config: The run's configuration.
        model: What is trained.
        optimizer: Its optimiser, which knows the gradients.
        device: Where both are.
    """

    def __init__(
        self,
        config: RunConfig,
        model: LanguageModel,
        optimizer: TrainingOptimizer,
        device: torch.device,
    ) -> None:
        self._train, self._optimizer, self._device = config.train, optimizer, device
        self._loss = torch.compile(model.loss) if config.train.compile else model.loss

    def prepare(self, states: Sequence[State] | None) -> None:
        """See :class:`TrainingPass`: builds kernels, and proves that a pass fits into memory."""
        shape = (self._train.batch_size, self._train.chunk_size + 1)
        self.compute(torch.zeros(shape, dtype=torch.uint8, device=self._device), states)
        self._optimizer.zero_grad()

    def run(
        self, tokens_bt1: Tensor, states: list[State] | None, *, fresh: bool, mark: Mark
    ) -> tuple[Tensor, list[State] | None]:
        """See :class:`TrainingPass`."""
        if fresh:
            self._optimizer.zero_grad()
        return self.compute(tokens_bt1, states, mark)

    def compute(
        self, tokens_bt1: Tensor, states: Sequence[State] | None, mark: Mark = unmarked
    ) -> tuple[Tensor, list[State] | None]:
        """Compute one micro-batch; its gradients are added to those that are there."""
        with autocast(self._device, self._train.precision):
            loss, carried = self._loss(tokens_bt1, states)
        mark("forward")
        (loss / self._train.grad_accum).backward()
        if not self._train.tbptt:
            return loss.detach(), None
        return loss.detach(), [{k: v.detach() for k, v in state.items()} for state in carried]
