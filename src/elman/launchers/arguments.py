"""The command line of one job of a sweep, as its process gets it and as a person would type it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from omegaconf import DictConfig

from elman.cli import session
from elman.config.compose import typed_overrides

# Hydra settings of the sweep itself, which its jobs must not see.
OF_THE_SWEEP = re.compile(r"hydra[./](mode|sweep|sweeper|launcher|run)\b")
# A job alone is a job alone, also where a file of settings asks for a sweep.
ALONE = "hydra.mode=RUN"


def job_arguments(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return the arguments of one job, without its folder.

    Args:
        config: The sweep's composed tree.
        overrides: The job's own overrides; those that place it in a sweep are left out.
    """
    of_hydra = typed_overrides(config, "hydra")
    kept = [text for text in of_hydra if not OF_THE_SWEEP.match(text)]
    own = [text for text in overrides if not OF_THE_SWEEP.match(text)]
    return [*session.current().config_flags, *own, *kept, ALONE]


def job_command(config: DictConfig, overrides: Sequence[str]) -> str:
    """Return what a person pastes to run one job of a sweep alone."""
    return shlex.join(["elman", *job_arguments(config, overrides)])
