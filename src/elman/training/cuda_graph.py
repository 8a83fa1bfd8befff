"""The training pass as CUDA graphs: captured once, then replayed without Python.

A small model's pass is thousands of short kernels, and a GPU waits for the interpreter between
them. A CUDA graph launches them all at once, on the same memory every time. Bytes and carried
states are copied into fixed input tensors; loss, gradients and new states appear in fixed output
tensors. The update of the weights is a graph of its own if its optimizer needs nothing of the host.

Shapes: b rows, t predicted bytes; a batch is [b, t+1] bytes, or [b, 2, t] symbols of a task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.kernels.graphs import CudaGraphs, why_not_captured
from elman.models.backends import REFERENCE, best_backend
from elman.models.inputs import ids_dtype
from elman.models.language_model import LanguageModel
from elman.models.mixed import JOIN, cell_of
from elman.models.state import State, copied, layout, overwrite
from elman.sections.graphs import graph_conflict
from elman.sections.model import ModelConfig
from elman.sections.training import TrainConfig
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.rng import rng_state, set_rng_state

# Between a replay and the same pass run eagerly. Only sums whose order the GPU chooses may differ.
TOLERANCE = 1e-2


def uses_graph(config: RunConfig, device: torch.device) -> bool:
    """Return whether ``train.graph`` asks for a CUDA graph on this device.

    Raises:
        UserError: ``true`` was asked for and there is no GPU.
    """
    train = config.train
    if train.graph == "auto":
        # A profile shows operators, and a replay runs none.
        fitting = not train.profile and graph_conflict(train, config.model) is None
        fitting = fitting and config.parallel.shard == "none"  # its weights move in memory
        return device.type == "cuda" and fitting and not _loops_in_python(config)
    if train.graph and device.type != "cuda":
        raise UserError(
            f"train.graph=true: a CUDA graph needs a GPU, and training runs on {device.type} here; "
            "use train.graph=auto"
        )
    return train.graph


def _loops_in_python(config: RunConfig) -> bool:
    """Return whether a Python loop computes one time step after another.

    Such a pass is 10^5 short kernels or more. Nobody has measured the time and memory that so large
    a graph takes, so the user must ask for it.
    """
    best = (best_backend(cell_of(part), "cuda") for part in config.model.parts())
    return REFERENCE in (*config.kernels.backend.split(JOIN), *best)


Compute = Callable[[Tensor, Sequence[State] | None], tuple[Tensor, list[State] | None]]
"""Adds the gradients of a batch; from it and states to the mean loss and the states after it."""

Update = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Updates the weights, from the losses of a batch's parts, [k]; returns their mean and the norm."""


class _Kind(NamedTuple):
    """A kind of micro-batch: each kind is recorded as its own graph.

    Args:
        restart: Whether its rows start without states. (The same pass with states of zeros may
            take other code.)
        fresh: Whether its gradients replace the existing ones instead of being added.
    """

    restart: bool
    fresh: bool


class _Recorded(NamedTuple):
    replay: Callable[[], None]
    loss: Tensor


class ReplayedPass:
    """The forward and backward pass of a micro-batch, recorded once and then replayed.

    The first micro-batch of a step writes its gradients; it does not add them to zeros. An eager
    step does the same, because its gradients are None before. So a parameter that gets no gradient
    in the pass keeps None.

    Args:
        train: Group ``train``.
        settings: Group ``model``.
        model: The model to train. Its parameters and buffers must not move in memory from now on.
        optimizer: Its optimizer.
        device: Device of both.
        compute: The pass that is recorded.
        batch_shape: The shape of a batch.
    """

    def __init__(
        self,
        train: TrainConfig,
        settings: ModelConfig,
        model: LanguageModel,
        optimizer: TrainingOptimizer,
        device: torch.device,
        compute: Compute,
        batch_shape: tuple[int, ...],
    ) -> None:
        self._train, self._settings = train, settings
        self._model, self._optimizer, self._device = model, optimizer, device
        self._compute_batch, self._graphs = compute, CudaGraphs(device)
        self._batch = torch.zeros(batch_shape, dtype=ids_dtype(settings.vocab_size), device=device)
        self._states: list[State] | None = None
        self._recorded: dict[_Kind, _Recorded] = {}

    def prepare(self) -> float:
        """Build kernels, record, and compare; weights and gradients do not change.

        Returns:
            The seconds of all this.

        Raises:
            UserError: the pass cannot be recorded, or a replay gives another result.
        """
        began = time.perf_counter()
        rng, kinds = rng_state(self._device), self._kinds()
        self._begin()
        with self._graphs.aside():
            # The first run's result is ignored: kernels are built, and some time their variants.
            for kind in kinds:
                self._compute(kind)
            set_rng_state(rng, self._device)
            eager = self._run_eagerly(kinds)
        self._optimizer.zero_grad()
        if self._states is not None:
            # In a separate function, so that the memory of these passes is free before a capture.
            self._states = copied(self._states)
        # The fresh kind comes first: it makes the gradients that the others add to.
        for kind in sorted(kinds, key=lambda kind: not kind.fresh):
            self._recorded[kind] = self._record(kind)
        set_rng_state(rng, self._device)
        recorded = self._run_recorded(kinds)
        if not torch.allclose(recorded, eager, rtol=TOLERANCE, equal_nan=True):
            self._refuse("gives other results as a CUDA graph")
        return time.perf_counter() - began

    def run(
        self, batch: Tensor, states: list[State] | None, *, fresh: bool
    ) -> tuple[Tensor, list[State] | None]:
        """Compute one micro-batch; the gradients land in the parameters.

        Args:
            batch: Bytes, or tokens in any integer dtype, on the device.
            states: The states that the last call returned, or a saved copy; None for rows that
                start.
            fresh: Whether this is the first micro-batch of its optimizer step. Its gradients
                replace the existing ones; those of later ones are added.

        Returns:
            The loss, nats per byte, and the states after the batch (None without ``train.tbptt``).
            Both are valid until the next call.
        """
        assert self._recorded, "prepare records the pass"
        self._batch.copy_(batch)
        if states is not None and states is not self._states:
            assert self._states is not None
            overwrite(self._states, states)
        kind = _Kind(states is None, fresh)
        if kind not in self._recorded:  # rare: a restart in a step's first micro-batch
            torch._foreach_zero_(self._gradients())
            kind = kind._replace(fresh=False)
        return self._replay(kind), self._states

    def release(self) -> None:
        """Drop the graphs and their memory; :meth:`prepare` then comes before the next pass."""
        self._recorded.clear()
        self._graphs.release()

    def record_update(self, update: Update, blocked: Tensor) -> Update:
        """Record what follows the last micro-batch of a step, after :meth:`prepare`.

        Args:
            update: Clips the gradients and updates the weights, from the loss of every part; it
                needs nothing of the host.
            blocked: While this flag is true, ``update`` changes no weight and no moment. It stays
                what it is.

        Returns:
            The same as a replay.

        Raises:
            UserError: it cannot be recorded.
        """
        losses_k, before = torch.zeros(1, device=self._device), blocked.clone()
        outputs: list[tuple[Tensor, Tensor]] = []
        blocked.fill_(True)
        try:
            with self._graphs.aside():  # allocates the moments
                update(losses_k)
            replay = self._replayable(lambda: outputs.append(update(losses_k)))
        finally:
            blocked.copy_(before)

        def replayed(given_k: Tensor) -> tuple[Tensor, Tensor]:
            losses_k.copy_(given_k)
            replay()
            loss, norm = outputs[-1]
            return loss.clone(), norm.clone()  # the next replay writes to the same memory

        return replayed

    def _kinds(self) -> list[_Kind]:
        """Return the kinds to record, ordered so that states exist before they are needed."""
        restart = not self._train.tbptt
        kinds = [_Kind(restart, fresh=True)]
        if self._train.grad_accum > 1:
            kinds.append(_Kind(restart, fresh=False))
        return [_Kind(restart=True, fresh=False), *kinds] if self._train.tbptt else kinds

    def _begin(self) -> None:
        """Forget earlier recordings, and fill the input with symbols of every value."""
        self._states = None
        self._recorded.clear()
        values = torch.arange(self._batch.numel(), device=self._device)
        values %= self._settings.vocab_size
        self._batch.copy_(values.view_as(self._batch))

    def _compute(self, kind: _Kind) -> Tensor:
        """Run the work that a graph records: add a micro-batch's gradients and store its states."""
        before = None if kind.restart else self._states
        loss, states = self._compute_batch(self._batch, before)
        if states is not None and self._states is None:
            self._states = copied(states)
        elif states is not None:
            assert self._states is not None
            if layout(states) != layout(self._states):
                self._refuse("carries states that change their shape or dtype between chunks")
            overwrite(self._states, states)
        return loss

    def _record(self, kind: _Kind) -> _Recorded:
        losses: list[Tensor] = []
        replay = self._replayable(lambda: losses.append(self._compute(kind)))
        return _Recorded(replay, losses[-1])

    def _replayable(self, work: Callable[[], None]) -> Callable[[], None]:
        try:
            return self._graphs.record(work)
        except Exception as error:  # the eager pass has just worked, so recording is at fault
            self._refuse(f"cannot be captured ({why_not_captured(error)})", error)

    def _replay(self, kind: _Kind) -> Tensor:
        recorded = self._recorded[kind]
        recorded.replay()
        return recorded.loss

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._model.parameters() if p.grad is not None]

    def _figures(self, loss: Tensor) -> Tensor:
        """Return the loss and the norm of the gradients, as one tensor."""
        return torch.stack([loss, torch.nn.utils.get_total_norm(self._gradients())])

    def _run_eagerly(self, kinds: Sequence[_Kind]) -> Tensor:
        """Return loss and gradient norm of one micro-batch of each kind.

        Raises:
            UserError: the kinds give gradients to different sets of parameters, so a step could not
                tell which parameters have no gradient.
        """
        figures, owners = [], set()
        for kind in kinds:
            self._optimizer.zero_grad()
            figures.append(self._figures(self._compute(kind)))
            owners.add(tuple(p.grad is not None for p in self._model.parameters()))
        if len(owners) > 1:
            self._refuse("has parameters that only rows with states reach, or only rows without")
        return torch.stack(figures)

    def _run_recorded(self, kinds: Sequence[_Kind]) -> Tensor:
        """Return the same numbers for replays."""
        figures = []
        for kind in kinds:
            torch._foreach_zero_(self._gradients())
            figures.append(self._figures(self._replay(kind)))
        return torch.stack(figures)

    def _refuse(self, why: str, cause: Exception | None = None) -> NoReturn:
        setting = str(self._train.graph).lower()
        raise UserError(
            f"train.graph={setting}: {self._settings.name} {why}; use train.graph=false"
        ) from cause
