"""One job's line in the table at the end of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.exit_status import RunStatus
from elman.config.run_config import RunConfig


@dataclass(frozen=True)
class SweepRow:
    """One job.

    Args:
        number: Its number in the sweep, from 1.
        overrides: The overrides that distinguish it from the other jobs.
        status: How it ended, in a word or two.
        result: Its ``result.json``, or None if it wrote none.
    """

    number: int
    overrides: Sequence[str]
    status: str
    result: Mapping[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended in any other way than ok."""
        return self.status != RunStatus.OK


PrintTable = Callable[[Sequence[SweepRow], Sequence[RunConfig], Path | None], None]
"""Prints a sweep's table, given its rows, the jobs' configurations and the sweep's folder."""
