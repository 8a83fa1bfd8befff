"""One optimizer step after another: forward, backward, clipping, a masked update.

With several ranks, or exactly, a batch is computed in parts; their gradients are summed before the
update, which is the same on every rank.


Shapes: b rows, t predicted bytes; a batch is [b, t+1] bytes, or [b, 2, t] symbols of a task. k
parts of a batch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData, StreamBatches, open_batches
from elman.data.files import Bytes
from elman.distributed.averaging import average
from elman.distributed.division import divide
from elman.distributed.reduction import OwnGradients, Reduction, SummedGradients
from elman.distributed.team import ALONE, Team
from elman.distributed.tree import summed
from elman.evaluation.validation import to_device
from elman.models.language_model import LanguageModel
from elman.training.budget import Budget
from elman.training.carried import CarriedStates
from elman.training.cuda_graph import ReplayedPass, Update, uses_graph
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
    """What a step changes besides weights and moments, as it was after ``step`` steps."""

    step: int
    batches: dict[str, Any]
    buffers: list[Tensor]


class _Micro(NamedTuple):
    """A micro-batch: this rank's rows, and whether they start anew."""

    rows: Bytes
    restarted: bool


class Stepper:
    """Owns the model, the optimizer and the data of a run, and takes its optimizer steps.

    A non-finite loss or gradient blocks its own update and every later one on the device.
    :meth:`blocked` reports it; on a GPU it does so one step late, so that nothing waits.

    Args:
        config: The run's configuration.
        data: The open data.
        model: The model.
        optimizer: Its optimizer.
        device: Where the model lives.
        team: The ranks that train the model.

    Attributes:
        budget: The limits of the run, and what the steps have used of them.
        division: The parts of a batch, and which of them this rank computes.
        team: The ranks that train the model.
        released: Whether :meth:`discarded` is needed before the next step.
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
        team: Team = ALONE,
    ) -> None:
        train = config.train
        self._train, self.model, self.optimizer, self._device = train, model, optimizer, device
        self.budget = Budget(train, config.model, config.optim.warmup_steps)
        self.team, self._parallel = team, config.parallel
        self._sharded = config.parallel.shard != "none"
        self.division = divide(config.parallel, train.batch_size, team.place)
        self.batches = open_batches(data, train, self.division.own_rows)
        self.graph = uses_graph(config, device)
        chosen = ReplayedPass if self.graph else EagerPass
        of_part = train.model_copy(update={"batch_size": self.division.rows})
        passed = config.model_copy(update={"train": of_part})
        self._pass: TrainingPass = chosen(passed, model, optimizer, device)
        self._reduction = self._chosen_reduction()
        self._states = CarriedStates(self.division)
        self._blocked = torch.zeros((), dtype=torch.bool, device=device)
        self._flags: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        self._bookmarks: deque[_Bookmark] = deque(maxlen=3)
        self._replayed: Update | None = None
        self.released = False
        self.step = 0
        self.data_wait = 0.0
        self.mark: Mark = unmarked

    @property
    def tokens(self) -> int:
        """Number of bytes predicted so far."""
        return self.budget.bytes_at(self.step)

    def take(self, share: float) -> Step:
        """Take one optimizer step at ``share`` of the budget.

        Raises:
            UserError: the data can no longer be read; everything is as it was before the step.
        """
        self._bookmark()
        micros = self._read()  # before anything changes
        self.model.begin_step()
        losses_k = self._accumulate(micros)
        lr = self.optimizer.set_rate(self.step, share)
        loss, norm = (self._replayed or self._apply)(losses_k)
        self.step += 1
        if self._parallel.average_every and self.step % self._parallel.average_every == 0:
            average(self.team, self.model.parameters())
        self._flags.append((self.step, *self._fetch(self._blocked)))
        self.mark("optimiser")
        return Step(self.step, loss, norm, lr)

    def rewind(self) -> None:
        """Undo what a step has changed that ended before its update, or whose update was blocked.

        The next step is then the one after :attr:`step`, as if no other had begun.
        """
        for bookmark in self._bookmarks:
            if bookmark.step == self.step:
                self.batches.load_state_dict(bookmark.batches)
                for buffer, value in zip(self.model.buffers(), bookmark.buffers, strict=True):
                    buffer.copy_(value)

    def agree(self, *, moments: bool) -> None:
        """Average the weights of ranks that train on their own; others agree anyway.

        Args:
            moments: Average the optimizer's state, too.
        """
        if self._parallel.average_every:
            average(self.team, self.model.parameters())
            average(self.team, self.optimizer.moments() if moments else [])

    def discarded(self) -> float:
        """Run forward and backward passes that change nothing but build kernels and a graph.

        They also check that the step fits into memory before the clock starts.

        Returns:
            The seconds of a pass, without those of torch's compiler.

        Raises:
            UserError: the pass cannot be replayed as a graph.
        """
        rng = rng_state(self._device)
        try:
            seconds = self._pass.prepare(self._states.of(0))
            self._reduction.prepare()
            self.optimizer.prepare(self._device)
            alone = self.team.place.alone and self.division.whole
            if isinstance(self._pass, ReplayedPass) and self.optimizer.replayable and alone:
                self._replayed = self._pass.record_update(self._apply, self._blocked)
            self.synchronize()
        finally:
            set_rng_state(rng, self._device)
        self.released = False
        return seconds

    def make_room(self) -> None:
        """Free what only the next step needs: a recorded pass, gradients, the allocator's cache."""
        self.synchronize()
        self.released = self.graph
        self._pass.release()
        self._replayed = None
        self.optimizer.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

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
        """Return all that the next step depends on, except the saved weights.

        Every rank calls it; the result is the same at any number of ranks.
        """
        trained = None
        if self.optimizer.keeps_average:
            # On the host: the weights to save take as much of the device again. A part of a sharded
            # model stays where the ranks exchange it.
            weights = self.model.state_dict().items()
            trained = {
                k: v.detach().clone() if self._sharded else v.detach().to("cpu", copy=True)
                for k, v in weights
            }
        return {
            "step": self.step,
            "spent": self.budget.state_dict(self.step),
            "data_wait": self.data_wait,
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.state_dict(),
            # A copy: the next replay writes to the same memory.
            "states": self._states.rows(self.team),
            "rng": rng_state(self._device),
            "trained": trained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the saved weights are already in the model."""
        if state["trained"] is not None:
            self.model.load_state_dict(state["trained"])
        self.optimizer.load_state_dict(state["optimizer"], sharded=self._sharded)
        self._replayed = None  # it writes to the moments from before
        self.batches.load_state_dict(state["batches"])
        self._states.load(state["states"], self._device)
        self.step, self.data_wait = state["step"], state["data_wait"]
        if "spent" in state:  # missing in the oldest checkpoints
            self.budget.load_state_dict(state["spent"])
        set_rng_state(state["rng"], self._device)

    def _accumulate(self, micros: list[_Micro]) -> Tensor:
        """Forward and backward over this rank's rows, part after part.

        Returns:
            The mean loss of each part over the micro-batches, nats per byte, [k].
        """
        self._reduction.begin()
        losses_k = torch.zeros(self.division.own_parts, device=self._device)
        for part in range(self.division.own_parts):
            for n, micro in enumerate(micros):
                losses_k[part] += self._pass_over(micro, part, n)
            self._reduction.add()
        self._reduction.finish()
        return losses_k / self._train.grad_accum

    def _pass_over(self, micro: _Micro, part: int, n: int) -> Tensor:
        """Compute one part of the ``n``-th micro-batch; return its mean loss."""
        if isinstance(self.batches, StreamBatches) and micro.restarted:
            self._states.put(part, None)
        rows = self.division.rows
        tokens = to_device(micro.rows[part * rows : (part + 1) * rows], self._device)
        self.mark("data")
        if not self.division.whole:
            self._seed(n, part)
        loss, states = self._pass.run(tokens, self._states.of(part), fresh=n == 0, mark=self.mark)
        self._states.put(part, states)
        self.mark("backward")
        return loss

    def _of_all_ranks(self, losses_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean loss, the gradients' norm before clipping, and whether all is finite.

        The losses of the ranks are exchanged after their gradients. So where a rank is lost
        meanwhile, the loss is NaN, and the update is blocked.
        """
        if not self._parallel.average_every:
            losses_k = self.team.gathered(losses_k)
        limit = self._train.grad_clip or math.inf
        norm = self.optimizer.clip(self.model.parameters(), limit)
        if self._sharded:
            norm = norm.full_tensor()  # type: ignore[attr-defined]
        if not self._parallel.average_every:
            loss = _mean(losses_k)
            # One question for both, because each takes four kernels. Their sum is finite if they
            # are: neither comes near the largest float.
            return loss, norm, torch.isfinite(loss + norm)
        pairs = self.team.gathered(torch.stack([losses_k[0], norm])).view(-1, 2)
        loss, norm = pairs[:, 0].mean(), pairs[:, 1].mean()
        return loss, norm, torch.isfinite(pairs).all()

    def _apply(self, losses_k: Tensor) -> tuple[Tensor, Tensor]:
        """Clip, and update the weights; return the mean loss and the gradients' norm."""
        loss, norm, finite = self._of_all_ranks(losses_k)
        # The flag stays set: after a non-finite number no later update may reach the weights.
        self._blocked |= ~finite
        self.optimizer.step(self._blocked)
        return loss, norm

    def _chosen_reduction(self) -> Reduction:
        """Return what sums the gradients of this run."""
        by_itself = self._parallel.average_every or self._sharded
        if self.division.whole or by_itself:
            return OwnGradients()
        return SummedGradients(self.team, self.division, self.model.parameters())

    def _seed(self, n: int, part: int) -> None:
        """Make random numbers a function of the seed, the step and the part, on any rank."""
        numbers = (self._train.seed, self.step, n, self.division.first_part + part)
        (seed,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
        torch.manual_seed(int(seed))

    def _bookmark(self) -> None:
        """Remember the state before a step: another rank may be lost in it."""
        if self.team.place.alone:
            return
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        self._bookmarks.append(_Bookmark(self.step, self.batches.state_dict(), buffers))

    def _read(self) -> list[_Micro]:
        """Return the micro-batches of a step.

        Raises:
            UserError: one cannot be read; then none counts as read.
        """
        before = self.batches.state_dict()
        micros = []
        for _ in range(self._train.grad_accum):
            try:
                micros.append(_Micro(self._next_rows(), self.batches.restarted))
            except (UserError, OSError):
                if micros:
                    self.batches.load_state_dict(before)
                raise
        return micros

    def _next_rows(self) -> Bytes:
        began = time.perf_counter()
        rows = self.batches.next()
        self.data_wait += time.perf_counter() - began
        return rows

    def _fetch(self, flag: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Start copying a device flag to the host; the event says when it has arrived."""
        if self._device.type != "cuda":
            return flag.clone(), None
        host = torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(flag, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return host, event


def _mean(losses_k: Tensor) -> Tensor:
    """Return the mean of the parts' losses, summed in the fixed tree's order where there is one."""
    count = losses_k.numel()
    if count == 1:
        return losses_k[0]
    if count & (count - 1):
        return losses_k.mean()
    return summed([one.clone() for one in losses_k]) / count
