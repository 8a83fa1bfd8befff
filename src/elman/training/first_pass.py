"""The pass before a run's clock starts: how far it is, and whether a step would take too long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from elman.base.errors import UserError
from elman.base.units import duration
from elman.sections.training import TrainConfig
from elman.training.display import Display
from elman.training.preparation import prepare_step
from elman.training.training_state import TrainingState

_BACKWARD = 2.0
"""Work of a layer's backward pass, in forward passes."""
_TRUSTED_SECONDS = 60.0
# More operations a second than any machine has: of a thread in fp32, and of a GPU.
_CPU_PEAK, _GPU_PEAK = 4e11, 1e16


class LayerProgress:
    """Notes which layer a pass on a CPU is at.

    The share of the work that is done is counted in layers, all alike, whose backward pass takes
    twice as long as their forward pass.

    Args:
        layers: The model's layers, in order.
        train: Group ``train``.
    """

    def __init__(self, layers: Iterable[nn.Module], train: TrainConfig) -> None:
        self._layers, self._train = [*layers], train
        self._began = time.perf_counter()
        self._at: tuple[str, int] | None = None
        self._done = 0.0

    def progress(self) -> str:
        """Return what is computed now and what is left, as the end of a line."""
        if self._at is None:
            return ""
        what, layer = self._at
        said = f", {what}, layer {layer + 1} of {len(self._layers)}"
        if self._done == 0.0:
            return said
        return f"{said}, about {duration(self._whole() - self._seconds())} left"

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside this context the layers tell when they compute.

        Raises:
            UserError: the pass will take longer than it may.
        """
        with contextlib.ExitStack() as hooks:
            for number, layer in enumerate(self._layers):
                hooks.callback(layer.register_forward_hook(self._hook(number)).remove)
                hooks.callback(layer.register_forward_pre_hook(self._before(number)).remove)
            yield

    def _before(self, number: int) -> Any:
        def hook(layer: nn.Module, given: object) -> None:
            if self._at is None or self._at[0] == "forward":  # what is recomputed comes backward
                self._note("forward", number, float(number))

        return hook

    def _hook(self, number: int) -> Any:
        count = len(self._layers)

        def backward(gradient: Tensor) -> None:
            done = count + _BACKWARD * (count - 1 - number)
            if done > self._done:
                self._note("backward", number, done)

        def hook(layer: nn.Module, given: object, result: object) -> None:
            for part in result if isinstance(result, tuple) else (result,):
                if isinstance(part, Tensor) and part.requires_grad:
                    part.register_hook(backward)
                    return

        return hook

    def _note(self, what: str, number: int, done: float) -> None:
        self._at, self._done = (what, number), done
        if done and self._seconds() >= _TRUSTED_SECONDS:
            refuse_too_long(self._train, self._whole() * self._train.grad_accum)

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _whole(self) -> float:
        return self._seconds() * (1 + _BACKWARD) * len(self._layers) / self._done


def first_pass(state: TrainingState, display: Display) -> float:
    """Build missing kernels and check that a step fits into memory; the clock does not run yet.

    Returns:
        The seconds of a step, as this pass tells.

    Raises:
        UserError: the pass cannot be replayed as a graph, or a step would take longer than
            ``train.max_step_hours``.
    """
    train, team = state.train, state.team
    refuse_hopeless(train, state.budget.flops_per_byte, state.device, team.place.size)
    progress: Callable[[], str] = str
    watching: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    what = "compiling the pass" if train.compile else "first pass"
    if state.device.type == "cpu" and not train.compile:
        layers = LayerProgress(state.model.layers, train)
        progress, watching = layers.progress, layers.watched()
    with watching, display.long_step(f"{what} (not counted)", progress):
        if state.reduction.sharded:  # a pass needs every rank
            seconds = prepare_step(state)
        else:
            with team.host_first("building kernels"):
                seconds = prepare_step(state)
    seconds *= train.grad_accum
    refuse_too_long(train, max(row[0] for row in team.gather(seconds)))
    return seconds


def refuse_hopeless(
    train: TrainConfig, flops_per_byte: float | None, device: torch.device, ranks: int
) -> None:
    """Raise UserError if no machine could take a step within ``train.max_step_hours``.

    Args:
        train: Group ``train``.
        flops_per_byte: Operations of training for a byte; None if they cannot be counted.
        device: Where the model is trained.
        ranks: How many processes share a batch.
    """
    hours = train.max_step_hours
    if hours is None or flops_per_byte is None:
        return
    peak = _CPU_PEAK * torch.get_num_threads() if device.type == "cpu" else _GPU_PEAK
    predicted = train.batch_size * train.chunk_size * train.grad_accum
    seconds = flops_per_byte * predicted / (peak * ranks)
    if seconds > 3600 * hours:
        raise too_long(train, seconds, "at least")


def refuse_too_long(train: TrainConfig, seconds: float) -> None:
    """Raise UserError if a step of so many seconds is longer than ``train.max_step_hours``."""
    hours = train.max_step_hours
    if hours is not None and seconds > 3600 * hours:
        raise too_long(train, seconds)


def too_long(train: TrainConfig, seconds: float, about: str = "about") -> UserError:
    """Return the error of a step that would take so many seconds."""
    sizes = {
        "train.grad_accum": train.grad_accum,
        "train.batch_size": train.batch_size,
        "train.chunk_size": train.chunk_size,
    }
    smaller = " or ".join(f"{name} ({n:,})" for name, n in sizes.items() if n > 1)
    return UserError(
        f"one step would take {about} {duration(seconds)}, and train.max_step_hours="
        f"{train.max_step_hours:g} refuses that; make {smaller} smaller, choose a smaller model, "
        "or allow it with train.max_step_hours=null"
    )
