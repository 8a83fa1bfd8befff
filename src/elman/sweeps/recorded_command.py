"""What a sweep records about the command that started it and the launcher that ran it last."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from elman.base.quoting import as_override
from elman.config.compose import typed_overrides
from elman.launchers.command import OF_THE_SWEEP
from elman.sections.launching import LauncherConfig, SweepSettings


@dataclass(frozen=True)
class Command:
    """The command that started a sweep; ``sweep.resume`` builds its own command from it.

    Args:
        typed: The whole command, without the program's name.
        cwd: The folder in which it was typed; its relative paths start there.
        flags: Its flags that say where YAML files are found.
        hydra: Its overrides of Hydra's own settings, except for folders and modes.
        launcher: Its overrides of the launcher and the launcher's settings.
        launcher_name: The launcher that ran the jobs last.
    """

    typed: tuple[str, ...]
    cwd: str
    flags: tuple[str, ...]
    hydra: tuple[str, ...]
    launcher: tuple[str, ...]
    launcher_name: str

    def as_json(self) -> dict[str, Any]:
        """Return it as ``sweep.json`` has it."""
        return {
            "typed": shlex.join(["elman", *self.typed]),
            "argv": list(self.typed),
            "cwd": self.cwd,
            "flags": list(self.flags),
            "hydra": list(self.hydra),
            "launcher": {"name": self.launcher_name, "overrides": list(self.launcher)},
        }


def recorded_command(
    tree: DictConfig,
    settings: SweepSettings,
    earlier: Mapping[str, Any] | None,
    argv: Sequence[str],
    config_flags: Sequence[str],
) -> Command | None:
    """Return what a sweep records about the command that started it and its present launcher.

    Args:
        tree: The composed tree of this command.
        settings: The sweep's settings.
        earlier: The record of the sweep that is resumed. An old sweep has not recorded its
            command, which is then unknown.
        argv: This command as typed, without the program's name.
        config_flags: Its flags that say where YAML files are found.
    """
    of_hydra = typed_overrides(tree, "hydra")
    own_launcher = [text for text in of_hydra if re.match(r"hydra[./]launcher\b", text)]
    chosen = str(tree.hydra.runtime.choices["launcher"])
    used = str(tree.hydra.runtime.choices["hydra/launcher"])
    if used.startswith("elman_"):
        own_launcher = [*_launcher_overrides(chosen, settings.launcher), *own_launcher]
    if earlier is None:
        return Command(
            typed=tuple(argv),
            cwd=os.getcwd(),
            flags=tuple(config_flags),
            hydra=tuple(text for text in of_hydra if not OF_THE_SWEEP.match(text)),
            launcher=tuple(own_launcher),
            launcher_name=chosen,
        )
    if "argv" not in earlier:
        return None
    return Command(
        typed=tuple(earlier["argv"]),
        cwd=str(earlier["cwd"]),
        flags=tuple(earlier["flags"]),
        hydra=tuple(earlier["hydra"]),
        launcher=tuple(own_launcher),
        launcher_name=chosen,
    )


def _launcher_overrides(chosen: str, settings: LauncherConfig) -> list[str]:
    """Return overrides that choose a launcher with exactly these settings."""
    own = settings.model_dump(exclude={"name"})
    values = [f"launcher.{key}={as_override(value)}" for key, value in own.items()]
    return [f"launcher={chosen}", *values]
