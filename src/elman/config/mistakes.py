"""One error line for each way in which Hydra or OmegaConf refuses a command.

Their own texts take several lines and advise ``+key=value``, which would let a typing error pass.
An exception's type and attributes say what happened. Where they do not, the overrides themselves
are looked through, as Hydra parses them, for the one that cannot be right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from elman.base.crash import in_users_code, kept_traceback, place_of
from elman.base.errors import UserError, first_line, nearest, suggest
from elman.base.yaml_file import uncomposable
from elman.config.keys import UNTUNED, is_hydra_key
from elman.config.model_files import MODEL

Compose = Callable[[Sequence[str]], DictConfig]
# Longer lists of choices are not printed; the error says what prints them.
_LONGEST_LIST = 14
# Errors of other types that these packages raise for a user's mistake.
_FOREIGN = ("hydra", "omegaconf", "antlr4", "yaml")
_NOUNS = {"model": "model", "mode": "mode", "optim": "optimizer", "data": "data"}
_NOUNS["benchmark"] = "suite"
_PLACEHOLDERS = {
    "eval.checkpoint": "<run folder>",
    "generate.checkpoint": "<run folder>",
    "probe.checkpoint": "<run folder>",
    "export.checkpoint": "<run folder>",
    "export.to": "<new folder>",
    "model.dim": "512",
    "model.depth": "4",
}


@contextmanager
def explain_mistakes(overrides: Sequence[str], compose: Compose) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf in this context into a one-line UserError.

    Args:
        overrides: The command's overrides.
        compose: Composes a tree from overrides; the tree shows which keys the chosen groups have.
    """
    command = _Command(overrides, compose)
    for override in overrides:
        _refuse_form(override)
        _refuse_path(override, command)
    try:
        yield
    except UserError as error:
        if (typed := _as_typed(str(error), overrides)) != str(error):
            raise UserError(typed) from error
        raise
    except Exception as error:
        line = uncomposable(error) or _explained(error, command)
        if line is None:
            raise
        raise UserError(one_line(line)) from error


def one_line(text: str) -> str:
    """Return ``text`` on one line, with single blanks."""
    return " ".join(text.split())


def several_suites(typed: str) -> str:
    """Return the error for several suites in one command."""
    first, *_ = typed.partition("=")[2].strip("[]").split(",")
    return f"{typed}: one suite at a time; type a command for each, as in benchmark={first}"


def _as_typed(line: str, overrides: Sequence[str]) -> str:
    """Return an error's line with its number as typed: 1e3, not 1000.0; 1e400, not inf."""
    key, equals, rest = line.partition("=")
    shown, colon, reason = rest.partition(":")
    for override in overrides:
        name, _, value = override.partition("=")
        if name.lstrip("+") != key or not equals or not colon:
            continue
        for piece in value.split(","):
            if piece != shown and _number(piece) is not None and _number(piece) == _number(shown):
                return f"{key}={piece}:" + reason.replace(f"'{shown}'", f"'{piece}'")
    return line


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _refuse_form(override: str) -> None:
    """Refuse forms that Hydra's grammar allows and elman does not use."""
    key, _, value = override.partition("=")
    if override.startswith("~") and override not in UNTUNED:
        if "." not in key:
            raise UserError(f"{key}: a group cannot be left out; drop {key}")
        instead = f"give it a value, as in {key[1:]}=null, or drop {key}"
        raise UserError(f"{key}: settings cannot be removed; {instead}")
    if not key.strip("+"):
        raise UserError(f"{override}: has no key; type key=value, as in train.steps=100")
    if layer := re.fullmatch(r"\+*model\.layers\.(\d+)(?:\.(\w+))?", key):
        raise UserError(f"{override}: {_layer_in_list(layer[1], layer[2], value)}")
    if key.lstrip("+") in ("hydra.callbacks", "hydra/callbacks"):
        raise UserError(f"{override}: elman needs its own callback; add yours as +{key}.mine=...")
    if key == "tune" and "," in value:
        raise UserError(f"{override}: every model is tuned in one space; type tune=rates")
    if not value.startswith(("{", "[")) or "." in key:
        return
    if key == "benchmark" and value.startswith("["):
        raise UserError(several_suites(override))
    from elman.config.run_config import RunConfig
    from elman.config.setting_mistakes import whole_section

    if key not in (*RunConfig.model_fields, "tune"):
        return
    if value.startswith("{"):
        raise UserError(whole_section(key, value))
    if key == "tune":
        raise UserError(f"{override}: tune takes one choice, as in tune=rates")
    sweep = f"elman -m {key}={value.strip('[]')}"
    raise UserError(f"{override}: {key} takes one choice; for a job with each type {sweep}")


def _layer_in_list(place: str, option: str | None, value: str) -> str:
    """Return what to type in place of a key of one layer, as ``model.layers.5.cell=e88``."""
    entry = f"cell:{value}" if option in (None, "cell") else f"cell:<its cell>,{option}:{value}"
    return (
        "the layers are set as one list, in which at names single ones; type "
        f"'model.layers=[{{{entry},at:{place}}}]'"
    )


def _refuse_path(override: str, command: _Command) -> None:
    """Refuse a file or path where a group expects a name.

    Hydra would read the file, and the run would have a name that is in no list and no table.
    """
    key, _, value = override.lstrip("+").partition("=")
    group = key.split("@")[0]
    if not _is_group(group):
        return
    for word in re.findall(r"[^\s,()\[\]'\"]+", value):
        if word.endswith((".yaml", ".yml")) or {"", ".", ".."} & set(word.split("/")):
            raise UserError(_path_for_name(key, group, word, command))


def _path_for_name(key: str, group: str, word: str, command: _Command) -> str:
    """Return the error for a file or path given to a group."""
    from elman.config.suggestions import choices

    name = word.split("/")[-1].removesuffix(".yaml").removesuffix(".yml")
    best = name if command.composed([f"{group}={name}"]) else nearest(name, choices(group))
    hint = suggest(f"{key}={best}") if best else f"{_listed_by(group)} lists the choices"
    if group == "data" and best != name:
        hint = suggest(f"data.path={word}")
    return f"{key}={word}: expected a name, not a file or path; {hint}"


def _is_group(name: str) -> bool:
    of_models = name.startswith(f"{MODEL}/")  # their folders are no groups
    return "." not in name and not of_models and Path(str(files("elman.conf")), name).is_dir()


class _Command:
    """The overrides of a command, and what they compose to."""

    def __init__(self, overrides: Sequence[str], compose: Compose) -> None:
        self.overrides, self._compose = overrides, compose

    @cached_property
    def parsed(self) -> list[Override]:
        """The overrides as Hydra parses them, or none if one of them cannot be parsed."""
        try:
            parsed: list[Override] = OverridesParser.create().parse_overrides(list(self.overrides))
        except HydraException:
            return []
        return parsed

    def composed(self, overrides: Sequence[str]) -> Mapping[str, Any] | None:
        """Return what some overrides compose to, or None if they do not."""
        try:
            tree = OmegaConf.to_container(self._compose(overrides), resolve=False)
        except Exception:  # they have an error of their own
            return None
        assert isinstance(tree, dict)
        return {str(key): section for key, section in tree.items()}

    @cached_property
    def tree(self) -> Mapping[str, Any] | None:
        """What the choices of the command compose to, without its settings."""
        return self.composed(
            [
                str(one.input_line)
                for one in self.parsed
                if _chooses(one) and not one.is_sweep_override() and not one.is_force_add()
            ]
        )


def _chooses(override: Override) -> bool:
    """Whether an override chooses from a group that can be chosen from: its own form is right."""
    group = override.key_or_group
    own = override.is_add() and "." not in group and not _is_group(group)
    chosen = _is_group(group) and override.package is None and not override.is_add()
    return isinstance(override.value(), str) and (own or chosen or group.startswith("hydra/"))


def _explained(error: Exception, command: _Command) -> str | None:
    """Return the line for an error of Hydra, OmegaConf or the YAML parser; None for others."""
    if isinstance(error, OverrideParseException):
        return _syntax(error, command.overrides)
    if isinstance(error, MissingConfigException):
        return _missing_file(error, command)
    if isinstance(error, OmegaConfBaseException):
        return _tree_error(error)
    if isinstance(error, UserWarning):
        return _warning(command)
    if hasattr(error, "problem_mark"):
        return f"{_where_in_yaml(error.problem_mark)}: not valid YAML; fix that line"
    if not (isinstance(error, HydraException) or _foreign(error)):
        return None
    if line := next((line for one in command.parsed if (line := _mistake(one, command))), None):
        return line
    if isinstance(error.__cause__, OmegaConfBaseException):
        return _tree_error(error.__cause__)
    swept = [override for override in command.parsed if override.is_sweep_override()]
    if swept and isinstance(error, HydraException):
        return _swept(next((one for one in swept if one.is_hydra_override()), swept[0]))
    typed, reason = " ".join(command.overrides), first_line(error)
    return f"{typed}: cannot be composed ({reason}); `elman --help` shows what can be typed"


def _warning(command: _Command) -> str:
    """Return the error for the two mistakes of which Hydra only warns; see cli/main.py."""
    for override in command.parsed:
        if override.key_or_group == "hydra.searchpath":
            return f"{override.input_line}: names a folder that does not exist; type file://FOLDER"
    for mode in ("mode=suites", "mode=tasks"):
        if mode in command.overrides:
            return f"{mode}: starts no run; drop -m"
    return "hydra.mode=RUN: contradicts -m; drop one of them"


def _mistake(override: Override, command: _Command) -> str | None:
    """Return what is wrong with one override, or None if it can be right."""
    key, typed = override.key_or_group, override.input_line
    if override.is_sweep_override() or command.tree is None:
        return _not_a_name(override)
    known_choices = command.tree["hydra"]["runtime"]["choices"]
    if override.get_key_element().lstrip("+") in known_choices:
        added = override.is_add() or override.is_force_add()
        return _drop_plus(override) if added else _not_a_name(override)
    if override.package is not None or ("/" in key and not override.is_add()):
        group, value = key.split("/")[0], override.value()
        meant = _group_meant(group, str(value))
        hint = suggest(f"{meant}={value}") if meant else "`elman --help` lists the groups"
        return f"{typed}: no such group; {hint}"
    there, value = _look_up(command.tree, key)
    if override.is_add():
        is_set = there and value is not None and not isinstance(override.value(), dict | list)
        return _drop_plus(override) if is_set else None
    return None if there or override.is_force_add() else _unknown_key(override, command)


def _look_up(tree: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Return whether a tree has a dotted key, and its value."""
    node: Any = tree
    for part in key.split("."):
        if isinstance(node, str) and "${" in node:
            return True, node  # the tree of another place
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def _drop_plus(override: Override) -> str:
    typed = str(override.input_line)
    key = override.get_key_element().lstrip("+")
    return f"{typed}: {key} is already set; drop the +: {typed.lstrip('+')}"


def _not_a_name(override: Override) -> str | None:
    """Return the error for a group that gets a number, a truth value or nothing as its choice."""
    key = override.key_or_group
    if not _is_group(key) or override.is_sweep_override() or isinstance(override.value(), str):
        return None
    named = f"expected the name of a file in {key}/"
    return f"{override.input_line}: {named}; {_listed_by(key)} lists them"


def _swept(override: Override) -> str:
    """Return the error for several values where there can be one."""
    typed = str(override.input_line)
    key, _, value = typed.partition("=")
    if override.is_hydra_override():
        return f"{typed}: Hydra's own settings cannot be swept; give it one value"
    if key == "benchmark":
        return several_suites(typed)
    line = f"{typed}: several values need -m, as in elman -m {_in_shell(typed)}"
    from elman.config.suggestions import takes_list

    if "," not in value or "(" in value or not takes_list(key):
        return line
    return f"{line}; for one list type {_in_shell(f'{key}=[{value}]')}"


def _unknown_key(override: Override, command: _Command) -> str:
    """Return the error for a key that is not in the tree of the command's choices."""
    from elman.config.setting_mistakes import unknown_key
    from elman.config.suggestions import group_of, group_override, known_keys

    key, typed = override.key_or_group, str(override.input_line)
    value = typed.partition("=")[2]
    if is_hydra_key(key):
        return f"{typed}: Hydra has no such setting; `elman --cfg hydra` prints them"
    if key == "cell":
        return f"cell={value}: a model names its cell; choose a model, as in model=e88_tiny"
    section, _, name = key.rpartition(".")
    if section in ("", "train", "model") and group_of(name) != name:
        meant = group_override(name, value or "...")
        return f"{key}={value}: no such setting; {suggest(str(meant))}"
    if group := _group_meant(key, value):
        return f"{key}={value}: no such group; {suggest(f'{group}={value}')}"
    group = key.partition(".")[0]
    swept = [one for one in command.parsed if one.is_sweep_override() and one.key_or_group == group]
    if swept and key in known_keys():
        # Hydra composes once without the swept groups, and refuses what their default lacks.
        before = f"before {swept[-1].input_line} is swept, nothing has this setting"
        return f"{key}: {before}; type ++{key}={value}"
    tree = dict(command.tree or {})
    for one in command.parsed:  # the tree is that of the choices alone
        if one.key_or_group == "model.layers" and not one.is_sweep_override():
            tree["model"] = {**tree.get("model", {}), "layers": one.value()}
    return unknown_key(key, value or "...", tree)


def _group_meant(key: str, value: str) -> str | None:
    """Return the group that offers ``value``, if ``key`` is close to the group's name."""
    from elman.config.suggestions import choices, groups

    if "." in key:
        return None
    return nearest(key, [group for group in groups() if value in choices(group)])


def _missing_file(error: MissingConfigException, command: _Command) -> str:
    """Return the error for a choice, or a whole configuration, without a file."""
    path = error.missing_cfg_file
    if path is None:
        return "--config-path: no such folder; drop the flag: --config-dir adds your own"
    group, _, choice = path.rpartition("/")
    for override in command.parsed:
        if f"{override.key_or_group}/{override.value()}" == path:
            group, choice = override.key_or_group, str(override.value())
    # Only the text names the file that asks for it, as in: In 'model/mine': Could not find ...
    text = str(error)
    parent = text.split("'")[1] if text.startswith("In '") else "config"
    in_file = "" if parent in ("config", "hydra/config") else f" (in {parent}.yaml)"
    if not group and not in_file and error.options is None:
        return f"--config-name {path}: no such file; drop the flag, or add its --config-dir"
    if group == "cell":
        from elman.models.cells import registry

        known = registry.cells()
        cell = nearest(choice, known) or ", ".join(known)
        return f"cell {choice}: no such cell{in_file}; write /cell/{cell}@_here_"
    if not error.options:
        return f"{group or path}={choice}: no such file{in_file}; choose one by its name"
    noun = _NOUNS.get(group, f"choice of {group}")
    return f"{group}={choice}: " + _no_such(group, choice, f"{noun}{in_file}", error.options)


def _no_such(group: str, choice: str, noun: str, options: Sequence[str]) -> str:
    """Return what is wrong with a choice that a group does not have, and what to type."""
    from elman.config.suggestions import choice_named, choices

    if group == "data" and (os.path.lexists(os.path.expanduser(choice)) or "." in choice):
        return f"expected a name, not a file; {suggest(f'data.path={choice}')}"
    if group == "model" and choice in choices("benchmark"):
        return f"a suite has this name; {suggest(f'benchmark={choice}')}"
    best = choice and (choice_named(group, choice, options) or nearest(choice, options))
    if best:
        return f"no such {noun}; {suggest(f'{group}={best}')}"
    if len(options) <= _LONGEST_LIST:
        return f"no such {noun}; choices: {', '.join(options)}"
    if group == "data":
        return f"no such {noun}; `elman mode=tasks` lists tasks, and data.path=<file> names text"
    return f"no such {noun}; {_listed_by(group)} lists the choices"


def _listed_by(group: str) -> str:
    modes = {"model": "`elman mode=models`", "benchmark": "`elman mode=suites`"}
    return modes.get(group, "`elman --help`")


def _syntax(error: OverrideParseException, overrides: Sequence[str]) -> str:
    """Return the error for an override that the grammar cannot read."""
    override = error.override
    key, equals, value = override.partition("=")
    if not equals:
        from elman.config.suggestions import word_hint

        place = overrides.index(override) + 1 if override in overrides else len(overrides)
        following = overrides[place] if place < len(overrides) else ""
        return word_hint(override, "" if "=" in following else following)
    if not re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w-]*([./@][\w-]+)*", key):
        return f"{override}: the key cannot be read; type it as group.key, as in train.steps=100"
    if value.startswith("="):
        return f"{override}: has one = too many; type {key}={value.lstrip('=')}"
    if error.__cause__ is not None:  # a function of the grammar failed, not the grammar
        return f"{override}: cannot be evaluated ({first_line(error.__cause__)}); fix or quote it"
    if any(value.count(a) != value.count(b) for a, b in ("[]", "()", "{}")):
        return f"{override}: a bracket is not closed; close it, or quote the value"
    if any(value.count(mark) % 2 for mark in "'\""):
        return f"{override}: a quote is not closed; close it"
    quoted = "'" + value.replace("'", "\\'") + "'"
    return f'{override}: the value has special characters; quote it: "{key}={quoted}"'


def _tree_error(error: OmegaConfBaseException) -> str:
    """Return the error for one place of the composed tree."""
    key = str(error.full_key or "a setting")
    first = first_line(error)
    if isinstance(error, MissingMandatoryValue):
        return f"{key}: missing; add {key}={_PLACEHOLDERS.get(key, '...')}"
    if isinstance(error, InterpolationResolutionError) and in_users_code(error):
        said = first.replace(" raised while resolving interpolation", "")
        place = place_of(error)
        return f"{key}: its resolver fails: {said} ({place}); {kept_traceback(error)}; fix it"
    if isinstance(
        error, InterpolationKeyError | UnsupportedInterpolationType | InterpolationResolutionError
    ):
        return f"{key}: its interpolation fails ({first}); fix it or give a plain value"
    return f"{key}: {first}; `elman --cfg all` prints every setting"


def _in_shell(text: str) -> str:
    """Quote an override that a shell would split."""
    return f"'{text}'" if re.search(r"[\s\[\](){}*?$&;<>|]", text) else text


def _where_in_yaml(mark: Any) -> str:
    return f"{getattr(mark, 'name', 'YAML')}, line {getattr(mark, 'line', 0) + 1}"


def _foreign(error: Exception) -> bool:
    """Whether the innermost frame of an error belongs to Hydra or to a package below it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""
    return module.split(".")[0] in _FOREIGN
