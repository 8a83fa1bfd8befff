"""Forward and backward pass of one micro-batch, operation by operation.

Shapes: b rows, t predicted bytes; a batch is [b, t+1] bytes, or [b, 2, t] symbols of a task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from elman.config.run_config import RunConfig
from elman.evaluation.validation import autocast
from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.training.objective import batch_shape, loss_of
from elman.training.optim.optimizers import TrainingOptimizer

Mark = Callable[[str], None]
"""Called with the name of a part of a step when that part ends."""


def unmarked(part: str) -> None:
    """The default mark: do nothing."""


class TrainingPass(Protocol):
    """Forward and backward pass of a micro-batch; the gradients land in the parameters."""

    def prepare(self, states: Sequence[State] | None) -> float:
        """Do the one-time work of the first pass now; weights and gradients do not change.

        Args:
            states: The states that the first pass will get.

        Returns:
            The seconds of a pass; without those of torch's compiler, where it compiles the pass.
        """

    def run(
        self, batch: Tensor, states: list[State] | None, *, fresh: bool, mark: Mark
    ) -> tuple[Tensor, list[State] | None]:
        """Compute one micro-batch.

        Args:
            batch: Bytes, uint8, on the device.
            states: The states that the last call returned, or a saved copy; None for rows that
                start.
            fresh: Whether this is the first micro-batch of its optimizer step. Its gradients
                replace the existing ones; those of later ones are added.
            mark: Called when the forward pass ends, if the two passes are separate.

        Returns:
            The loss, nats per byte, and the states after the batch (None without ``train.tbptt``).
            Both are valid until the next call.
        """
        ...

    def release(self) -> None:
        """Let go of memory that is kept between two passes; :meth:`prepare` then comes first."""


class EagerPass:
    """A pass whose operations Python calls one after the other.

    Args:
        config: The run's configuration.
        model: The model to train.
        optimizer: Its optimizer, which knows the gradients.
        device: Device of both.
    """

    def __init__(
        self,
        config: RunConfig,
        model: LanguageModel,
        optimizer: TrainingOptimizer,
        device: torch.device,
    ) -> None:
        self._train, self._optimizer, self._device = config.train, optimizer, device
        loss = loss_of(config, model)
        self._loss = torch.compile(loss) if config.train.compile else loss
        self._shape = batch_shape(config, config.train.batch_size)

    def prepare(self, states: Sequence[State] | None) -> float:
        """See :class:`TrainingPass`; builds kernels, and checks that a pass fits into memory."""
        if self._train.compile:
            # Each form of the pass is compiled when it is first computed: that of rows which
            # start, of rows which go on, and where a state grows the form for any length.
            _, (_, carried) = self._timed(None)
            for _ in range(2 if carried is not None else 0):
                _, (_, carried) = self._timed(carried)
            states = states if carried is None else carried
        return self._timed(states)[0]

    def _timed(
        self, states: Sequence[State] | None
    ) -> tuple[float, tuple[Tensor, list[State] | None]]:
        """Compute a pass that changes nothing; return its seconds and its results."""
        batch = torch.zeros(self._shape, dtype=torch.uint8, device=self._device)
        began = time.perf_counter()
        found = self.compute(batch, states)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - began
        self._optimizer.zero_grad()
        return seconds, found

    def run(
        self, batch: Tensor, states: list[State] | None, *, fresh: bool, mark: Mark
    ) -> tuple[Tensor, list[State] | None]:
        """See :class:`TrainingPass`."""
        if fresh:
            self._optimizer.zero_grad()
        return self.compute(batch, states, mark)

    def release(self) -> None:
        """See :class:`TrainingPass`: there is none."""

    def compute(
        self, batch: Tensor, states: Sequence[State] | None, mark: Mark = unmarked
    ) -> tuple[Tensor, list[State] | None]:
        """Compute one micro-batch; its gradients are added to the existing ones."""
        with autocast(self._device, self._train.precision):
            loss, carried = self._loss(batch, states)
        mark("forward")
        (loss / self._train.grad_accum).backward()
        if not self._train.tbptt:
            return loss.detach(), None
        return loss.detach(), [{k: v.detach() for k, v in state.items()} for state in carried]
