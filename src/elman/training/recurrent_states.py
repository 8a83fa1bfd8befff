"""The recurrent states that rows carry over from batch to batch, for each part of a batch."""

from __future__ import annotations

import torch

from elman.distributed.division import Division
from elman.distributed.team import Team
from elman.models.state import State, copied


class RecurrentStates:
    """The states of all layers after the last batch; None where rows start.

    Args:
        division: The parts of a batch, each of which has states of its own.
    """

    def __init__(self, division: Division) -> None:
        self._division = division
        self._parts: list[list[State] | None] = [None] * division.own_parts

    def of(self, part: int) -> list[State] | None:
        """Return the states of this rank's ``part``-th part."""
        return self._parts[part]

    def put(self, part: int, states: list[State] | None) -> None:
        """Keep the states of a part; with several parts as copies, since a pass reuses memory."""
        if states is not None and len(self._parts) > 1:
            states = copied(states)
        self._parts[part] = states

    def restart(self) -> None:
        """Let all rows start anew."""
        self._parts = [None] * len(self._parts)

    def rows(self, team: Team) -> list[State] | None:
        """Return copies of the states of all rows of all ranks, in order.

        Args:
            team: The ranks, which all call this.
        """
        present = [part for part in self._parts if part is not None]
        if len(present) < len(self._parts):
            return None
        own = _joined(present)
        if team.place.alone:
            return own
        return [{key: _of_all(team, value) for key, value in layer.items()} for layer in own]

    def load(self, states: list[State] | None, device: torch.device) -> None:
        """Take this rank's rows of saved states."""
        if states is None:
            self.restart()
            return
        first, rows = self._division.own_rows.start, self._division.rows
        for part in range(len(self._parts)):
            mine = slice(first + part * rows, first + (part + 1) * rows)
            if self._division.whole:
                mine = slice(None)
            self._parts[part] = [
                {key: value[mine].to(device) for key, value in layer.items()} for layer in states
            ]


def _joined(parts: list[list[State]]) -> list[State]:
    """Return copies of the states of several parts as those of one batch."""
    if len(parts) == 1:
        return copied(parts[0])
    return [
        {key: torch.cat([layer[key] for layer in layers]) for key in layers[0]}
        for layers in zip(*parts, strict=True)
    ]


def _of_all(team: Team, rows: torch.Tensor) -> torch.Tensor:
    """Return a tensor's rows of all ranks; fp32 holds every narrower dtype exactly."""
    return team.gathered(rows.flatten()).view(-1, *rows.shape[1:]).to(rows.dtype)
