"""The moments of a run at which the loop calls its listeners.

What goes on beside the steps is done by them. Each does one thing, in a file of
:mod:`elman.training.listeners`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from elman.base.exit_status import RunStatus
from elman.training.checkpoints.retention import SaveReason


class Step(NamedTuple):
    """Results of one optimizer step; the tensors stay on the device until they are read."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float


class Moment(NamedTuple):
    """What all ranks see alike between two steps.

    Attributes:
        share: The used share of the budget, 0 to 1.
        stopped: Whether a signal came to one of them.
        save: Why a checkpoint is due, if one is.
    """

    share: float
    stopped: bool
    save: SaveReason | None

    @property
    def goes_on(self) -> bool:
        """Whether another step follows."""
        return self.share < 1.0 and not self.stopped


class Listener:
    """Does one thing beside the steps. The moments are called in this order; each may be left out.

    A moment may raise: the run then ends, and what was trained until then is saved.
    """

    def session_begins(self) -> None:
        """Nothing can refuse the run any more: its clock starts now."""

    def training_begins(self, moment: Moment) -> None:
        """The first step of the session comes next, if the moment goes on."""

    def step_begins(self) -> None:
        """A step comes next."""

    def step_ends(self, step: Step) -> None:
        """A step was asked of the device, which may still compute it."""

    def between_steps(self, moment: Moment) -> bool:
        """All ranks saw the same moment after a step, and no signal has come.

        Returns:
            Whether that took a while, so that the ranks have to look at the clock again.
        """
        return False

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """No step follows: the budget is used up, a number is not finite, or a signal came."""


class Listeners:
    """Several listeners, called one after another."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._all = listeners

    def session_begins(self) -> None:
        """See :class:`Listener`."""
        for one in self._all:
            one.session_begins()

    def training_begins(self, moment: Moment) -> None:
        """See :class:`Listener`."""
        for one in self._all:
            one.training_begins(moment)

    def step_begins(self) -> None:
        """See :class:`Listener`."""
        for one in self._all:
            one.step_begins()

    def step_ends(self, step: Step) -> None:
        """See :class:`Listener`."""
        for one in self._all:
            one.step_ends(step)

    def between_steps(self, moment: Moment) -> bool:
        """See :class:`Listener`."""
        took = [one.between_steps(moment) for one in self._all]  # each of them, whatever one says
        return any(took)

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """See :class:`Listener`."""
        for one in self._all:
            one.training_ends(status, stopped=stopped)
