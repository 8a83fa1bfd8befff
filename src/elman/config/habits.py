"""What people type who come from other programs: words, flags and names, and what to type here.

Imports no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from elman.base.errors import nearest
from elman.config.known_keys import is_switch, known_keys, with_mode
from elman.config.meanings import GROUPS_ELSEWHERE, MODES_ELSEWHERE, fitting, meant_key, model_meant
from elman.config.run_config import MODES

_OWN_FILES = "your own files are read by --config-dir DIR, as in DIR/model/mine.yaml"
# Words and flags that mean a whole command.
_COMMANDS = {
    "help": "elman --help",
    "version": "elman --version",
    "list": "elman mode=models",
    "ls": "elman mode=models",
    "list_models": "elman mode=models",
    "sweep": "elman -m model=e1,e42",
    "multirun": "elman -m model=e1,e42",
    "resume": "elman train.resume=<run folder>",
    "config": "elman --cfg job",
    "print_config": "elman --cfg job",
}
_TRAINS = ("run", "start", "launch")
# Flags of other programs: what stands for them here.
_FLAGS = {
    "json": "every run writes result.json, and elman mode=report writes report.csv",
    "csv": "elman mode=report writes report.csv",
    "config": _OWN_FILES,
    "cpu": "did you mean train.device=cpu?",
    "gpu": "did you mean train.device=cuda?",
    "cuda": "did you mean train.device=cuda?",
    "v": "did you mean --version?",
    "V": "did you mean --version?",
    "quiet": "elman ... > log keeps what a run says out of the terminal",
    "verbose": "a run's folder has everything that it says in train.log",
    "debug": "a run's folder has everything that it says in train.log",
    "list_models": "did you mean mode=models?",
    "list": "did you mean mode=models?",
    "sweep": "did you mean -m?",
}
# The setting that a word after the name of a mode is meant for.
_OF_MODE = {
    "eval": "eval.checkpoint",
    "generate": "generate.checkpoint",
    "report": "report.dir",
    "solve": "solve.params",
}
_LISTED_BY = {
    "model": "`elman mode=models` lists them",
    "benchmark": "`elman mode=suites` lists them",
    "data": "`elman mode=tasks` lists tasks, and data.path=<file> names text",
}
_LIKE = 0.7


def choices(group: str) -> list[str]:
    """Return the choices of a group that are shipped."""
    return sorted(path.stem for path in Path(str(files("elman.conf")), group).glob("*.yaml"))


def groups() -> list[str]:
    """Return the groups from which a command chooses."""
    folder = Path(str(files("elman.conf")))
    return sorted(path.name for path in folder.iterdir() if any(path.glob("*.yaml")))


def model_named(name: str, known: Sequence[str]) -> str | None:
    """Return the model that a name or a published label means exactly; None if there is none.

    Args:
        name: As typed: ``E75h4n32``, ``GatedDeltaNet``, or a label like ``E88_h8n32``.
        known: The models there are.
    """
    by_lower = {one.lower(): one for one in known}
    if (found := by_lower.get(name.lower())) or (found := model_meant(name)) in known:
        return found
    if not re.search(r"[A-Za-z]\w*\d", name):
        return None  # a word of prose is no label
    label = re.compile(rf"(?<![\w-])(?<!suite ){re.escape(name)}(?![\w-])", re.IGNORECASE)
    for file in sorted(Path(str(files("elman.conf")), "model").glob("*.yaml")):
        with file.open(encoding="utf-8") as stream:
            if label.search(stream.readline()) and file.stem in known:
                return file.stem
    return None


def group_override(name: str, value: str) -> str | None:
    """Return the choice that ``--name value`` or ``name value`` means, if it is one of a group."""
    group = GROUPS_ELSEWHERE.get(name.lower(), name)
    if group not in groups():
        return None
    if not value or value == "...":
        return f"{group}=..."
    known = choices(group)
    if group == "data" and value not in known:
        return f"data.path={value}"
    if group == "mode":
        return f"mode={MODES_ELSEWHERE.get(value.lower()) or nearest(value, known) or value}"
    if group == "model":
        return f"model={model_named(value, known) or value}"
    return f"{group}={value if value in known else nearest(value, known, _LIKE) or value}"


def flag_hint(word: str, value: str) -> str | None:
    """Return what to type for a flag that elman does not have; None if nothing is known.

    Args:
        word: The flag as typed, without its value.
        value: Its value, or an empty text.
    """
    name = word.lstrip("-")
    key = name.replace("-", "_")
    if told := _FLAGS.get(name) or _FLAGS.get(key.lower()):
        return told
    if chosen := group_override(key, value):
        return f"choices are group=name: did you mean {chosen}?"
    meant = meant_key(key, known_keys()) if len(key) > 1 else None
    if meant is None:
        return None
    full, fits = meant
    told = value if fits and value else "true" if fits and is_switch(full) else "..."
    return f"settings are key=value: did you mean {with_mode(f'{fitting(full, value)}={told}')}?"


def word_hint(word: str, following: str = "") -> str:
    """Return what is wrong with a word that is no ``key=value``, and what to type.

    Args:
        word: As typed.
        following: The word after it, if that is no ``key=value`` either.
    """
    if (told := _meant_by_word(word, following)) is not None:
        return f"{word}: expected key=value; {told}"
    return f"{word}: expected key=value, as in train.steps=100"


def _meant_by_word(word: str, following: str) -> str | None:
    key = word.lower().replace("-", "_")
    if key in _COMMANDS:
        return f"type {_COMMANDS[key]}"
    if key in _TRAINS:
        return "drop it: elman trains"
    if key in MODES:
        return _did_you_mean(_mode_with(key, following))
    if key in GROUPS_ELSEWHERE or word in groups():
        group = GROUPS_ELSEWHERE.get(key, word)
        if following:
            return _did_you_mean(str(group_override(key, following)))
        return f"type {group}=<name>; {_LISTED_BY.get(group, '`elman --help` lists them')}"
    if mode := MODES_ELSEWHERE.get(key):
        return _did_you_mean(_mode_with(mode, following))
    for group in ("benchmark", "data"):
        if word in choices(group):
            return _did_you_mean(f"{group}={word}")
    if model := model_named(word, choices("model")):
        return _did_you_mean(f"model={model}")
    return _path_or_nearest(word)


def _path_or_nearest(word: str) -> str | None:
    """Return what a word means that is a path or is spelled like a key, a model or a mode."""
    if word.endswith((".yaml", ".yml")):
        return _OWN_FILES
    if meant := meant_key(word, known_keys()):
        return _did_you_mean(f"{meant[0]}=...")
    if os.path.lexists(os.path.expanduser(word)) or re.search(r"[/*]|\.\w+$", word):
        return _did_you_mean(f"data.path={word}")
    for group in ("mode", "model", "benchmark"):
        if best := nearest(word, choices(group), _LIKE):
            return _did_you_mean(f"{group}={best}")
    return None


def _mode_with(mode: str, following: str) -> str:
    setting = _OF_MODE.get(mode)
    return f"mode={mode} {setting}={following}" if setting and following else f"mode={mode}"


def _did_you_mean(text: str) -> str:
    return f"did you mean {text}?"
