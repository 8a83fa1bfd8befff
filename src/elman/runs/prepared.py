"""One job, checked and ready to run: what its mode gets, and what the mode leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elman.base.phases import Phases
from elman.base.rank_place import ONE_PROCESS, RankPlace
from elman.config.catalog import SHIPPED, Place
from elman.config.run_config import RunConfig
from elman.runs.folder import RunLock


@dataclass
class PreparedRun:
    """One validated job, ready to run.

    Args:
        config: Its typed configuration.
        folder: Its run folder, or None for a mode that makes none.
        lock: The lock of ``folder``, which is held.
        resumed: Whether the folder holds an earlier part of the same run.
        overrides: What a user typed, or would type, for this job alone, without flags.
        config_flags: Flags of the command that say where YAML files are found.
        places: Where the command finds YAML files.
        suite: The suite that the command names, if it names one.
        on_taken_up: Called when a resumed run can no longer be refused. It writes the files that
            must be in the run folder before the mode writes.
        in_sweep: Whether it runs in the process of its sweep, whose table then shows the result.
        result: What the mode found, if it has no folder to write it to.
        place: Which of the ranks this process is that train one model; only rank 0 has the folder.
        phases: How its time is spent.
    """

    config: RunConfig
    folder: Path | None = None
    lock: RunLock | None = None
    resumed: bool = False
    overrides: tuple[str, ...] = ()
    config_flags: tuple[str, ...] = ()
    places: Sequence[Place] = (SHIPPED,)
    suite: str | None = None
    on_taken_up: Callable[[], None] | None = None
    in_sweep: bool = False
    result: dict[str, Any] | None = None
    place: RankPlace = ONE_PROCESS
    phases: Phases = field(default_factory=Phases)

    def taken_up(self) -> None:
        """Note that the job has begun, and can no longer be refused."""
        if self.on_taken_up is not None:
            self.on_taken_up()
