"""Lets all ranks see the same moment between two steps."""

from __future__ import annotations

import signal

from elman.base.signals import Interruption
from elman.training.checkpoints.retention import reason_of
from elman.training.listeners.saving import Saver
from elman.training.listeners.totals import Totals
from elman.training.moments import Moment
from elman.training.training_state import TrainingState


class Agreement:
    """Rank 0's clock and its saves hold for all ranks, and so does a signal to any of them.

    Args:
        state: The steps, and the ranks that take them.
        totals: How much of the budget is used.
        saver: Knows when a checkpoint is due.
        interruption: Notes signals.
    """

    def __init__(
        self, state: TrainingState, totals: Totals, saver: Saver, interruption: Interruption
    ) -> None:
        self._state, self._totals, self._saver = state, totals, saver
        self._interruption = interruption

    def look(self) -> Moment:
        """Return the moment; every rank calls it."""
        state, interruption = self._state, self._interruption
        self._totals.forget_stop()
        state.count_bytes()
        share = self._totals.share()
        state.budget.pass_warmup(state.step, self._totals.clock.seconds())
        own = signal.Signals[interruption.name] if interruption.name else 0
        due = self._saver.due()
        rows = state.team.gather(share, own, due.number if due else 0)
        number = int(max(row[1] for row in rows))
        if number:
            interruption.take_over(number)
        return Moment(rows[0][0], number > 0, reason_of(rows[0][2]))
