"""One optimizer step after another: forward, backward, clipping, a masked update.

Shapes: b rows, t predicted bytes; a batch is [b, t+1] bytes, or [b, 2, t] symbols of a task.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData, StreamBatches, open_batches
from elman.data.files import Bytes
from elman.evaluation.validation import to_device
from elman.models.language_model import LanguageModel
from elman.models.state import State, copied
from elman.training.cuda_graph import ReplayedPass, uses_graph
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.passes import EagerPass, Mark, TrainingPass, unmarked
from elman.training.rng import rng_state, set_rng_state


class Step(NamedTuple):
    """Results of one optimizer step; the tensors stay on the device until they are read."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float


class _Bookmark(NamedTuple):
    """The state before a step, in case the step must be undone."""

    batches: dict[str, Any]
    states: list[State] | None
    rng: dict[str, Tensor]
    buffers: list[Tensor]


class Stepper:
    """Owns the model, the optimizer and the data of a run, and takes its optimizer steps.

    A non-finite loss or gradient blocks its own update and every later one on the device.
    :meth:`blocked` reports it; on a GPU it does so one step late, so that nothing waits.

    Attributes:
        graph: Whether the forward and backward passes are replayed as a CUDA graph.
        mark: Called with the name of each part of a step when it ends: data, forward, backward,
            ``optimiser`` (the key in bench.json). In a graph, forward and backward end together.
    """

    def __init__(
        self,
        config: RunConfig,
        data: AnyRunData,
        model: LanguageModel,
        optimizer: TrainingOptimizer,
        device: torch.device,
    ) -> None:
        train = config.train
        self._train, self.model, self.optimizer, self._device = train, model, optimizer, device
        self.batches = open_batches(data, train)
        self.graph = uses_graph(config, device)
        chosen = ReplayedPass if self.graph else EagerPass
        self._pass: TrainingPass = chosen(config, model, optimizer, device)
        self._states: list[State] | None = None
        self._blocked = torch.zeros((), dtype=torch.bool, device=device)
        self._flags: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        self.step = 0
        self.data_wait = 0.0
        self.mark: Mark = unmarked

    @property
    def tokens(self) -> int:
        """Number of bytes predicted so far."""
        train = self._train
        return self.step * train.batch_size * train.chunk_size * train.grad_accum

    def take(self, share: float) -> Step:
        """Take one optimizer step at ``share`` of the budget.

        Raises:
            UserError: the data can no longer be read; everything is as it was before the step.
        """
        before = self._bookmark() if self._train.grad_accum > 1 else None
        rows = self._next_rows()  # before anything changes
        self.model.begin_step()
        try:
            loss = self._accumulate(rows)
        except (UserError, OSError):
            if before is not None:
                self._back_to(before)
            raise
        lr = self.optimizer.set_rate(self.step, share)
        limit = self._train.grad_clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        # The flag stays set: after a non-finite number no later update may reach the weights.
        self._blocked = self._blocked | ~(torch.isfinite(loss) & torch.isfinite(norm))
        self.optimizer.step(self._blocked)
        self.step += 1
        self._flags.append((self.step, *self._fetch(self._blocked)))
        self.mark("optimiser")
        return Step(self.step, loss, norm, lr)

    def discarded(self) -> None:
        """Run forward and backward passes that change nothing but build kernels and a graph.

        They also check that the step fits into memory before the clock starts.

        Raises:
            UserError: the pass cannot be replayed as a graph.
        """
        rng = rng_state(self._device)
        self._pass.prepare(self._states)
        self.synchronize()
        set_rng_state(rng, self._device)

    def blocked(self, drain: bool = False) -> bool:
        """Whether a step was blocked; if so, the step count drops to the applied steps.

        Args:
            drain: Read the flag of the newest step too, at the end of a run.
        """
        late = 1 if self._device.type == "cuda" and not drain else 0
        while len(self._flags) > late:
            step, flag, event = self._flags.popleft()
            if event is not None:
                event.synchronize()
            if bool(flag):
                self.step = step - 1
                return True
        return False

    def synchronize(self) -> None:
        """Wait until the device has done everything asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, except the saved weights."""
        trained = None
        if self.optimizer.keeps_average:
            trained = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        return {
            "step": self.step,
            "data_wait": self.data_wait,
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.state_dict(),
            # A copy: the next replay writes to the same memory.
            "states": None if self._states is None else copied(self._states),
            "rng": rng_state(self._device),
            "trained": trained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the saved weights are already in the model."""
        if state["trained"] is not None:
            self.model.load_state_dict(state["trained"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        if state["states"] is not None:
            self._states = [_on(carried, self._device) for carried in state["states"]]
        self.step, self.data_wait = state["step"], state["data_wait"]
        set_rng_state(state["rng"], self._device)

    def _accumulate(self, rows: Bytes) -> Tensor:
        """Forward and backward over the micro-batches; return the mean loss, nats per byte.

        Args:
            rows: The first micro-batch, as :mod:`~elman.training.objective` shapes it.
        """
        total = torch.zeros((), device=self._device)
        for n in range(self._train.grad_accum):
            rows = self._next_rows() if n else rows
            if isinstance(self.batches, StreamBatches) and self.batches.restarted:
                self._states = None
            tokens = to_device(rows, self._device)
            self.mark("data")
            loss, self._states = self._pass.run(tokens, self._states, fresh=n == 0, mark=self.mark)
            self.mark("backward")
            total += loss
        return total / self._train.grad_accum

    def _bookmark(self) -> _Bookmark:
        """Return the state that the micro-batches of a step change before the update."""
        return _Bookmark(
            self.batches.state_dict(),
            None if self._states is None else copied(self._states),
            rng_state(self._device),
            [buffer.clone() for buffer in self.model.buffers()],
        )

    def _back_to(self, before: _Bookmark) -> None:
        """Undo a step of which only some micro-batches could be read."""
        self.batches.load_state_dict(before.batches)
        self._states = before.states
        set_rng_state(before.rng, self._device)
        for buffer, value in zip(self.model.buffers(), before.buffers, strict=True):
            buffer.copy_(value)

    def _next_rows(self) -> Bytes:
        began = time.perf_counter()
        rows = self.batches.next()
        self.data_wait += time.perf_counter() - began
        return rows

    def _fetch(self, flag: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Start copying a device flag to the host; the event says when it has arrived."""
        if self._device.type != "cuda":
            return flag, None
        host = torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(flag, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return host, event


def _on(state: State, device: torch.device) -> State:
    return {key: value.to(device) for key, value in state.items()}
