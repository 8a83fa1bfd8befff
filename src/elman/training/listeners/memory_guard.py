"""Memory for work between two steps: validating and saving, beside what the next step keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from elman.base.exit_status import RunStatus
from elman.evaluation.metrics import TrainingClock
from elman.training.display import Display
from elman.training.memory.advice import shortage
from elman.training.moments import Listener
from elman.training.preparation import prepare_step, release_step
from elman.training.training_state import TrainingState

Result = TypeVar("Result")


class TooLittleMemoryError(torch.OutOfMemoryError):
    """Work between two steps does not fit into memory; weights and moments are whole."""


class MemoryGuard(Listener):
    """Lets go of what only the next step needs, where work between two steps does not fit.

    A step that is replayed as a CUDA graph holds its memory all the time, which is most of a GPU
    for a large model. Validating then has what is left, and saving copies of the weights.

    Args:
        state: Owns the memory of a step.
        clock: The training clock.
        display: Shows that there was too little.
    """

    def __init__(self, state: TrainingState, clock: TrainingClock, display: Display) -> None:
        self._state, self._clock, self._display = state, clock, display
        self._said = False

    def step_begins(self) -> None:
        """Record the step anew, if its memory was needed since the last one."""
        if self._state.released:
            recording = self._display.long_step("recording the step again (not counted)")
            with recording, self._clock.pause("validation"):
                self.run("recording the step again", lambda: prepare_step(self._state))

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """Free what a step needs: none follows."""
        release_step(self._state)

    def run(self, what: str, work: Callable[[], Result], *, exchanges: bool = False) -> Result:
        """Do work, a second time with more memory if there was too little.

        Args:
            what: The work, for people.
            work: It changes nothing if memory runs out in it.
            exchanges: Whether ranks exchange numbers before its memory is allocated. Such work is
                not done again: the other ranks would not take part.

        Raises:
            TooLittleMemoryError: memory ran out all the same.
        """
        state = self._state
        try:
            return work()
        except torch.OutOfMemoryError as error:
            if state.reduction.sharded or (exchanges and not state.team.place.alone):
                raise _too_little(what, error) from error
        # Not in the handler: the error's frames hold tensors.
        release_step(state)
        if not self._said:
            self._said = True
            self._display.say(
                f"{what} did not fit into memory beside what a step keeps there; that is freed "
                "each time, and a CUDA graph is recorded again (not counted)"
            )
        try:
            return work()
        except torch.OutOfMemoryError as error:
            raise _too_little(what, error) from error


def _too_little(what: str, error: torch.OutOfMemoryError) -> TooLittleMemoryError:
    return TooLittleMemoryError(
        f"{what} does not fit into memory ({shortage(error)}); try a smaller train.batch_size, "
        "which is also that of validation, or a smaller model"
    )
