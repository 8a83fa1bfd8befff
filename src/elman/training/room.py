"""Room for work between two steps: validating and saving, beside what the next step needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from elman.config.run_config import RunConfig
from elman.training.display import Display
from elman.training.memory.advice import shortage
from elman.training.stepper import Stepper

Result = TypeVar("Result")


class NoRoomError(torch.OutOfMemoryError):
    """Work between two steps does not fit into memory; weights and moments are whole."""


class Room:
    """Lets go of what only the next step needs, where work between two steps does not fit.

    A step that is replayed as a CUDA graph holds its memory all the time, which is most of a GPU
    for a large model. Validating then has what is left, and saving copies of the weights.

    Args:
        config: The run's configuration.
        stepper: Owns the memory of a step.
        display: Shows that there was too little.
    """

    def __init__(self, config: RunConfig, stepper: Stepper, display: Display) -> None:
        self._stepper, self._display, self._said = stepper, display, False
        self._sharded = config.parallel.shard != "none"

    def give(self, what: str, work: Callable[[], Result], *, exchanges: bool = False) -> Result:
        """Do work, a second time with more room if there was too little.

        Args:
            what: The work, for people.
            work: It changes nothing if memory runs out in it.
            exchanges: Whether ranks exchange numbers before its memory is allocated. Such work is
                not done again: the other ranks would not take part.

        Raises:
            NoRoomError: memory ran out all the same.
        """
        try:
            return work()
        except torch.OutOfMemoryError as error:
            if self._sharded or (exchanges and not self._stepper.team.place.alone):
                raise _no_room(what, error) from error
        # Not in the handler: the error's frames hold tensors.
        self._stepper.make_room()
        if not self._said:
            self._said = True
            self._display.say(
                f"{what} did not fit into memory beside what a step keeps there; that is freed "
                "each time, and a CUDA graph is recorded again (not counted)"
            )
        try:
            return work()
        except torch.OutOfMemoryError as error:
            raise _no_room(what, error) from error


def _no_room(what: str, error: torch.OutOfMemoryError) -> NoRoomError:
    return NoRoomError(
        f"{what} does not fit into memory ({shortage(error)}); try a smaller train.batch_size, "
        "which is also that of validation, or a smaller model"
    )
