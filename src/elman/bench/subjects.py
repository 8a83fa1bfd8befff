"""The subjects of a benchmark: one layer with its optimizer, or a model's optimizer step.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from elman.config.run_config import RunConfig
from elman.data.tasks.batches import TaskData
from elman.data.text import AnyRunData, reset_token
from elman.evaluation.validation import autocast
from elman.kernels.graphs import Graphs
from elman.models.build import build_model
from elman.models.mixed import shared_backend
from elman.training.assembly import state_of
from elman.training.cuda_graph import uses_graph
from elman.training.loop import take_step
from elman.training.objective import Mark, unmarked
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.preparation import prepare_pass, prepare_step

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimiser"
DATA, PASSES = "data", "passes"
"""Parts of an iteration. A graph of training has both passes: they end together."""


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
        replayed: Whether an iteration replays CUDA graphs.
        params: Number of parameters.
        tokens: Predicted bytes, or steps of all rows, in an iteration.
        loss_chunk: Of a step: positions of a loss that pass through the head at a time; None is
            all.
    """

    level: str
    parts: tuple[str, ...]
    replayed = False

    def __init__(self, name: str, backend: str, device: torch.device) -> None:
        self.name, self.backend, self.device = name, backend, device
        self.path: str | None = None
        self.params = 0
        self.tokens = 0
        self.loss_chunk: int | None = None

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

    parts = (FORWARD, BACKWARD, OPTIMIZER)

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
        on_gpu = x_btd.is_cuda
        self._optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True, capturable=on_gpu)
        self._replays: list[Callable[[], None]] = []
        self.params = sum(p.numel() for p in layer.parameters())
        self.tokens = x_btd.shape[0] * x_btd.shape[1]
        with torch.no_grad():
            self._gradient_btd = torch.randn_like(self._forward())

    def iterate(self, mark: Mark) -> None:
        """See :class:`Subject`."""
        if self.replayed:
            for part, replay in zip(self.parts, self._replays, strict=True):
                replay()
                mark(part)
            return
        y_btd = self._forward()
        mark(FORWARD)
        y_btd.backward(self._gradient_btd)
        mark(BACKWARD)
        self._optimizer.step()
        self._drop_gradients()
        mark(OPTIMIZER)

    def record(self, graphs: Graphs) -> None:
        """Record each part of an iteration, which from now on replays them.

        Args:
            graphs: Records and replays the work.

        Raises:
            Exception: a part cannot be recorded.
        """
        with graphs.aside():
            self.iterate(unmarked)  # builds kernels, and makes the optimizer's state
        made: list[Tensor] = []
        self._replays = [
            graphs.record(lambda: made.append(self._forward())),
            graphs.record(lambda: made[-1].backward(self._gradient_btd)),
            graphs.record(lambda: self._optimizer.step()),
        ]
        self.replayed = True

    def loss_and_gradients(self) -> None:
        """See :class:`Subject`."""
        self._drop_gradients()  # those of a replay lie in its own memory
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

    Raises:
        UserError: ``train.graph`` asks for a CUDA graph, and the step cannot be one.
    """

    level = "step"
    parts: tuple[str, ...] = (DATA, FORWARD, BACKWARD, OPTIMIZER)

    def __init__(
        self, config: RunConfig, data: AnyRunData, backend: str, device: torch.device
    ) -> None:
        super().__init__(config.model.name, backend, device)
        model = build_model(
            config.model,
            backend=backend,
            device=device,
            allow_slow=config.baseline.allow_slow,
            reset_after=reset_token(config.data, data.tokenizer),
        )
        optimizer = TrainingOptimizer(config.optim, model, shared_backend(backend))
        self.replayed = uses_graph(config, device)
        self._state = state_of(config, data, model, optimizer, device, graph=self.replayed)
        if self.replayed:
            self.parts = (DATA, PASSES, OPTIMIZER)
            prepare_step(self._state)  # records it
        self.params = model.num_params()
        self.tokens = config.train.batch_size * config.train.chunk_size
        if not isinstance(data, TaskData):
            self.loss_chunk = model.chunk_of(self.tokens)

    def iterate(self, mark: Mark) -> None:
        """See :class:`Subject`."""
        names = {BACKWARD: PASSES} if self.replayed else {}
        self._state.mark = lambda part: mark(names.get(part, part))
        take_step(self._state, 0.5)

    def loss_and_gradients(self) -> None:
        """See :class:`Subject`."""
        prepare_pass(self._state, None)

    def weights(self) -> list[Tensor]:
        """See :class:`Subject`."""
        return list(self._state.model.parameters())

    def close(self) -> None:
        """Stop reading data ahead."""
        self._state.batches.close()
