"""Everything that an optimizer step reads and changes, and how it is saved and taken up again."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.data.batches import AnyBatches
from elman.distributed.division import Division
from elman.distributed.reduction import Reduction
from elman.distributed.team import Team
from elman.models.language_model import LanguageModel
from elman.sections.training import TrainConfig
from elman.training.budget import Budget
from elman.training.cuda_graph import ReplayedPass, Update
from elman.training.finite_check import FiniteCheck
from elman.training.micro_batches import MicroBatches
from elman.training.objective import Mark, Objective, unmarked
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.recurrent_states import RecurrentStates
from elman.training.rng import rng_state, set_rng_state


class _Bookmark(NamedTuple):
    """What a step changes besides weights and moments, as it was after ``step`` steps."""

    step: int
    batches: dict[str, Any]
    buffers: list[Tensor]


class TrainingState:
    """The model, its optimizer, the place in the data, and what else a step needs.

    Args:
        train: Group ``train``.
        model: The model.
        objective: What is minimized.
        optimizer: The model's optimizer.
        batches: The training batches of this rank.
        budget: The limits of the run, and what its steps have used of them.
        division: The parts of a batch, and which of them this rank computes.
        reduction: Makes one step of what the ranks compute.
        team: The ranks.
        device: Where the model lives.

    Attributes:
        step: Optimizer steps that were applied.
        micro_batches: Reads the batches of a step.
        recurrent: The states that the rows carry over from batch to batch.
        finite: Blocks an update that is not finite, and all later ones.
        replayed: The forward and backward pass as a CUDA graph; None where Python computes it.
        replayed_update: The update of the weights as a CUDA graph, likewise.
        released: Whether a step has to be prepared again before the next one.
        mark: Called with the name of each part of a step when it ends: data, forward, backward,
            ``optimiser`` (the key in bench.json). In a graph, forward and backward end together.
    """

    def __init__(
        self,
        train: TrainConfig,
        model: LanguageModel,
        objective: Objective,
        optimizer: TrainingOptimizer,
        batches: AnyBatches,
        budget: Budget,
        division: Division,
        reduction: Reduction,
        team: Team,
        device: torch.device,
    ) -> None:
        self.train, self.model, self.objective, self.optimizer = train, model, objective, optimizer
        self.batches, self.budget, self.device = batches, budget, device
        self.division, self.reduction, self.team = division, reduction, team
        self.micro_batches = MicroBatches(batches, train.grad_accum)
        self.recurrent = RecurrentStates(division)
        self.finite = FiniteCheck(device)
        self.replayed: ReplayedPass | None = None
        self.replayed_update: Update | None = None
        self.released = False
        self.step = self._bytes_before = 0
        self.mark: Mark = unmarked
        self._bookmarks: deque[_Bookmark] = deque(maxlen=3)

    @property
    def tokens(self) -> int:
        """Number of tokens predicted so far, over all ranks."""
        return self.budget.tokens_at(self.step)

    def count_bytes(self) -> None:
        """Count what the tokens of all ranks stand for; every rank calls it after each step."""
        if self.batches.token_lengths is None:
            return
        rows = self.team.gather(self.micro_batches.bytes)
        self.budget.count_bytes(self.step, self._bytes_before + round(sum(row[0] for row in rows)))

    @property
    def graph(self) -> bool:
        """Whether the forward and backward passes are replayed as a CUDA graph."""
        return self.replayed is not None

    def blocked(self, drain: bool = False) -> bool:
        """Whether a step was blocked; if so, the step count drops to the applied steps.

        Args:
            drain: Look at the newest step too, at the end of a run.
        """
        step = self.finite.blocked_step(drain)
        if step is not None:
            self.step = step - 1
        return step is not None

    def synchronize(self) -> None:
        """Wait until the device has done everything asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def agree(self, *, moments: bool) -> None:
        """Average the weights of ranks that train on their own; others agree anyway.

        Args:
            moments: Average the optimizer's state, too.
        """
        self.reduction.agree(self.model.parameters())
        if moments:
            self.reduction.agree(self.optimizer.moments())

    def bookmark(self) -> None:
        """Remember the state before a step: another rank may be lost in it."""
        if self.team.place.alone:
            return
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        self._bookmarks.append(_Bookmark(self.step, self.batches.state_dict(), buffers))

    def rewind(self) -> None:
        """Undo what a step has changed that ended before its update, or whose update was blocked.

        The next step is then the one after :attr:`step`, as if no other had begun.
        """
        for bookmark in self._bookmarks:
            if bookmark.step == self.step:
                self.batches.load_state_dict(bookmark.batches)
                for buffer, value in zip(self.model.buffers(), bookmark.buffers, strict=True):
                    buffer.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, except the saved weights.

        Every rank calls it; the result is the same at any number of ranks.
        """
        return {
            "step": self.step,
            "spent": self.budget.state_dict(self.step),
            "data_wait": self.micro_batches.wait,
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.state_dict(),
            # A copy: the next replay writes to the same memory.
            "states": self.recurrent.rows(self.team),
            "rng": rng_state(self.device),
            "trained": self._trained_weights(),
        }

    def _trained_weights(self) -> dict[str, Tensor] | None:
        """Return the weights that the next step trains, if others are saved to evaluate."""
        if not self.optimizer.keeps_average:
            return None
        # On the host: the weights to save take as much of the device again. A part of a sharded
        # model stays where the ranks exchange it.
        sharded = self.reduction.sharded
        return {
            name: value.detach().clone() if sharded else value.detach().to("cpu", copy=True)
            for name, value in self.model.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the saved weights are already in the model."""
        if state["trained"] is not None:
            self.model.load_state_dict(state["trained"])
        self.optimizer.load_state_dict(state["optimizer"], sharded=self.reduction.sharded)
        self.replayed_update = None  # it writes to the moments from before
        self.batches.load_state_dict(state["batches"])
        self.recurrent.load(state["states"], self.device)
        self.step, self.micro_batches.wait = state["step"], state["data_wait"]
        self.micro_batches.bytes = 0
        if "spent" in state:  # missing in the oldest checkpoints
            self.budget.load_state_dict(state["spent"])
            self._bytes_before = self.budget.bytes_at(self.step)
        set_rng_state(state["rng"], self.device)
