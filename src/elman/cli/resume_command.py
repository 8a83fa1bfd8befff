"""Expands ``elman -m sweep.resume=<folder>`` to the whole command that it stands for.

So does it with ``sweep.add=<folder>``, whose jobs are those of the sweep with other settings.

The sweep has recorded the command that started it: its flags, its launcher with all settings, and
the folder that its relative paths start from. All this is restored before anything is composed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from elman.cli.flags import Arguments
from elman.config.keys import is_hydra_key, key_of

_RESUME, _ADD = _KEYS = ("sweep.resume", "sweep.add")
# Flags whose value is a path.
_PLACES = ("--config-dir", "--config-path")


@contextmanager
def whole_command(arguments: Arguments) -> Iterator[Arguments]:
    """Yield the whole command; meanwhile its relative paths start from the recorded folder.

    Any other command is yielded unchanged. So is one whose sweep has recorded nothing: the code
    that reads the sweep's folder reports what is wrong with it.
    """
    named = [text for text in arguments.overrides if key_of(text) in _KEYS]
    recorded = _recorded(named[-1]) if named else None
    if recorded is None:
        yield arguments
        return
    here = os.getcwd()
    whole = _whole(arguments, recorded, here)
    adds = key_of(named[-1]) == _ADD
    own = not adds and any(not _of_the_sweep(key_of(text)) for text in arguments.overrides)
    # A command that sets something for the jobs means its paths from where it is typed.
    place = here if own else str(recorded["cwd"])
    if not os.path.isdir(place):
        print(
            f"note: {place}, where the sweep was started, is gone: relative paths start from here"
        )
        place = here
    os.chdir(place)
    try:
        yield whole
    finally:
        os.chdir(here)


def _recorded(override: str) -> dict[str, Any] | None:
    """Return what the sweep has recorded of its command, with its ``folder``; None if nothing."""
    from elman.base import run_files
    from elman.base.quoting import unquoted

    try:
        folder = Path(os.path.abspath(Path(unquoted(override)).expanduser()))
        content = json.loads((folder / run_files.SWEEP).read_text(encoding="utf-8"))
        assert isinstance(content["launcher"]["overrides"], list)
        known = {name: content[name] for name in ("cwd", "flags", "hydra", "launcher")}
    except Exception:  # no override, folder or file: whoever reads them next reports it
        return None
    choice = (content.get("tune") or {}).get("choice")
    return known | {"folder": str(folder), "tune": choice}


def _whole(arguments: Arguments, recorded: dict[str, Any], here: str) -> Arguments:
    flags = dict(arguments.flags)
    for name in _PLACES:
        if (typed := flags.get(name)) is not None:
            flags[name] = _absolute(typed, here)
    before = [str(text) for text in recorded["flags"]]
    for name, value in zip(before[::2], before[1::2], strict=True):
        flags.setdefault(name, _absolute(value, recorded["cwd"]) if name in _PLACES else value)
    typed_texts = [_placed(text, recorded["folder"]) for text in arguments.overrides]
    keys = {key_of(text) for text in typed_texts}
    recorded_texts = [*recorded["hydra"], *_launcher(recorded["launcher"], typed_texts)]
    if recorded["tune"] and any(key.startswith("tune.") for key in keys):
        recorded_texts.append(f"tune={recorded['tune']}")
    return replace(
        arguments,
        flags=flags,
        overrides=[*(text for text in recorded_texts if key_of(text) not in keys), *typed_texts],
    )


def _launcher(recorded: dict[str, Any], typed: Sequence[str]) -> list[str]:
    """Return the recorded settings of the launcher, unless another launcher is typed."""
    chosen = [text for text in typed if key_of(text) in ("launcher", "hydra/launcher")]
    same = all(text == f"launcher={recorded['name']}" for text in chosen)
    return list(recorded["overrides"]) if same else []


def _placed(text: str, folder: str) -> str:
    """Return an override with the sweep's folder made absolute: the current folder may change."""
    from elman.base.quoting import quoted

    key = key_of(text)
    return f"{key}={quoted(folder)}" if key in _KEYS else text


def _absolute(path: str, cwd: str) -> str:
    return path if "://" in path else os.path.join(cwd, os.path.expanduser(path))


def _of_the_sweep(key: str) -> bool:
    from elman.sweeps.settings import is_of_sweeps

    return is_of_sweeps(key) or is_hydra_key(key)
