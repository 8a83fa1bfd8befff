"""The subjects of a benchmark: one layer with its optimizer, or a model's optimizer step.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData
from elman.evaluation.validation import autocast
from elman.models.build import build_model
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.stepper import Stepper

Mark = Callable[[str], None]


class Subject(ABC):
    """One thing to time.

    Args:
        name: Name of the model or peer.
        backend: What computes its recurrence.
        device: Where it runs.

    Attributes:
        path: Words for what computes a packaged baseline; None for all others.
        level: ``layer``, ``step``, or ``op`` for a recurrence alone.
        parts: Names of the parts of an iteration, in order.
        params: Number of parameters.
        tokens: Predicted bytes, or steps of all rows, in an iteration.
    """

    level: str
    parts: ClassVar[tuple[str, ...]]

    def __init__(self, name: str, backend: str, device: torch.device) -> None:
        self.name, self.backend, self.device = name, backend, device
        self.path: str | None = None
        self.params = 0
        self.tokens = 0

    @abstractmethod
    def iterate(self, mark: Mark) -> None:
        """Run one iteration and call ``mark`` with each part's name when that part ends."""

    @abstractmethod
    def loss_and_gradients(self) -> None:
        """Run only forward and backward, as in an iteration."""

    @abstractmethod
    def weights(self) -> list[Tensor]:
        """Return the parameters."""


class LayerSubject(Subject):
    """A layer's forward, backward and AdamW step on random input.

    Args:
        name: As :class:`Subject`.
        layer: Takes [B, T, d] and returns a tensor, or a tuple that begins with one.
        x_btd: The input.
        backend: As :class:`Subject`.
        precision: ``auto``, ``fp32`` or ``bf16``.
        level: ``layer``, or ``op`` for a recurrence alone.
    """

    parts = ("forward", "backward", "optimiser")

    def __init__(
        self,
        name: str,
        layer: nn.Module,
        x_btd: Tensor,
        backend: str,
        precision: str,
        level: str = "layer",
    ) -> None:
        super().__init__(name, backend, x_btd.device)
        self.level, self._precision = level, precision
        self._layer, self._x_btd = layer, x_btd.detach().requires_grad_()
        trained = [p for p in layer.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
        self.params = sum(p.numel() for p in layer.parameters())
        self.tokens = x_btd.shape[0] * x_btd.shape[1]
        with torch.no_grad():
            self._gradient_btd = torch.randn_like(self._forward())

    def iterate(self, mark: Mark) -> None:
        """See :class:`Subject`."""
        y_btd = self._forward()
        mark("forward")
        y_btd.backward(self._gradient_btd)
        mark("backward")
        self._optimizer.step()
        self._drop_gradients()
        mark("optimiser")

    def loss_and_gradients(self) -> None:
        """See :class:`Subject`."""
        self._forward().backward(self._gradient_btd)
        self._drop_gradients()

    def weights(self) -> list[Tensor]:
        """See :class:`Subject`."""
        return list(self._layer.parameters())

    def _forward(self) -> Tensor:
        with autocast(self.device, self._precision):
            out = self._layer(self._x_btd)
        found = out if isinstance(out, Tensor) else out[0]
        assert isinstance(found, Tensor)
        return found

    def _drop_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._x_btd.grad = None


class StepSubject(Subject):
    """A model's optimizer step as in training, including reading its data.

    Args:
        config: The whole configuration of the run.
        data: Its open data.
        backend: As :class:`Subject`.
        device: Where it runs.
    """

    level = "step"
    parts = ("data", "forward", "backward", "optimiser")

    def __init__(
        self, config: RunConfig, data: AnyRunData, backend: str, device: torch.device
    ) -> None:
        super().__init__(config.model.name, backend, device)
        model = build_model(
            config.model,
            backend=backend,
            device=device,
            allow_slow=config.baseline.allow_slow,
            reset_after=config.data.reset_after,
        )
        optimizer = TrainingOptimizer(config.optim, model, backend)
        self._stepper = Stepper(config, data, model, optimizer, device)
        self.params = model.num_params()
        self.tokens = config.train.batch_size * config.train.chunk_size

    def iterate(self, mark: Mark) -> None:
        """See :class:`Subject`."""
        self._stepper.mark = mark
        self._stepper.take(0.5)

    def loss_and_gradients(self) -> None:
        """See :class:`Subject`."""
        self._stepper.discarded()

    def weights(self) -> list[Tensor]:
        """See :class:`Subject`."""
        return list(self._stepper.model.parameters())

    def close(self) -> None:
        """Stop reading data ahead."""
        self._stepper.batches.close()
