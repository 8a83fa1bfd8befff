"""One error line for each way in which Hydra or OmegaConf refuses a command.

Their own texts take several lines and advise ``+key=value``, which would let a typing error pass.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
    SearchPathException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from elman.base.crash import in_users_code, kept_traceback, place_of
from elman.base.errors import UserError, nearest
from elman.base.yaml_file import uncomposable
from elman.config.keys import is_hydra_key
from elman.config.meanings import GROUPS_ELSEWHERE, MODES_ELSEWHERE

Compose = Callable[[Sequence[str]], DictConfig]
# Longer lists of choices are not printed; the error points to `elman --help` instead.
_LONGEST_LIST = 12
_LONGEST_NAME = 200
# Errors of other types that these packages raise for a user's mistake.
_FOREIGN = ("hydra", "omegaconf", "antlr4", "yaml")


@contextmanager
def in_our_words(overrides: Sequence[str], compose: Compose) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf in this context into a one-line UserError.

    Args:
        overrides: The command's overrides.
        compose: Composes a tree from overrides; the tree shows which keys the chosen groups have.
    """
    for override in overrides:
        _refuse_form(override)
        _refuse_path(override, _Command(overrides, compose))
    try:
        yield
    except UserError as error:
        if (typed := _as_typed(str(error), overrides)) != str(error):
            raise UserError(typed) from error
        raise
    except Exception as error:
        if (line := uncomposable(error)) is not None:
            raise UserError(one_line(line)) from error
        if not (isinstance(error, HydraException | OmegaConfBaseException) or _foreign(error)):
            raise
        raise UserError(one_line(reword(error, overrides, compose))) from error


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
                said = reason.replace(f"'{shown}'", f"'{piece}'")
                return f"{key}={piece}:{said}"
    return line


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def reword(error: Exception, overrides: Sequence[str], compose: Compose) -> str:
    """Return the line for one error of Hydra, OmegaConf or the YAML parser."""
    if isinstance(error, OverrideParseException):
        return _syntax(error.override, error.message, overrides)
    if isinstance(error, SearchPathException):
        path = re.search(r"'(.+)' not found", str(error))
        return f"--config-dir {path[1] if path else ''}: no such folder; name an existing one"
    if isinstance(error, OmegaConfBaseException):
        return _tree_error(error)
    for pattern, line in _PATTERNS:
        if match := re.search(pattern, str(error)):
            return line(match, error, _Command(overrides, compose))
    if isinstance(error.__cause__, OmegaConfBaseException):
        return _tree_error(error.__cause__)
    if hasattr(error, "problem_mark"):
        return f"{_where_in_yaml(error.problem_mark)}: not valid YAML; fix that line"
    typed = " ".join(overrides)
    reason = str(error) or type(error).__name__
    return f"{typed}: cannot be composed ({reason}); `elman --help` shows what can be typed"


def one_line(text: str) -> str:
    """Return ``text`` on one line, with single blanks."""
    return " ".join(text.split())


def _refuse_form(override: str) -> None:
    """Refuse forms that Hydra's grammar allows and elman does not use."""
    key, _, value = override.partition("=")
    if override.startswith("~"):
        raise UserError(_cannot_remove(key[1:]))
    if not key.strip("+"):
        raise UserError(f"{override}: has no key; type key=value, as in train.steps=100")
    if key.lstrip("+") in ("hydra.callbacks", "hydra/callbacks"):
        raise UserError(f"{override}: elman needs its own callback; add yours as +{key}.mine=...")
    if not value.startswith(("{", "[")) or "." in key:
        return
    if key == "benchmark" and value.startswith("["):
        raise UserError(several_suites(override))
    from elman.config.known_keys import whole_section
    from elman.config.run_config import RunConfig

    if key in RunConfig.model_fields and value.startswith("{"):
        raise UserError(whole_section(key, value))
    if key in RunConfig.model_fields:
        sweep = f"elman -m {key}={value.strip('[]')}"
        raise UserError(f"{override}: {key} takes one choice; for a job with each type {sweep}")


def _refuse_path(override: str, command: _Command) -> None:
    """Refuse a file or path where a group expects a name.

    Hydra would read the file, and the run would have a name that is in no list and no table.
    """
    key, _, value = override.lstrip("+").partition("=")
    group = key.split("@")[0]
    if not Path(str(files("elman.conf")), group).is_dir() or "." in group:
        return
    for word in re.findall(r"[^\s,()\[\]'\"]+", value):
        parts = word.split("/")
        if word.endswith((".yaml", ".yml")) or {"", ".", ".."} & set(parts):
            raise UserError(_path_for_name(key, group, word, command))


def _path_for_name(key: str, group: str, word: str, command: _Command) -> str:
    """Return the error for a file or path given to a group."""
    name = re.sub(r"\.ya?ml$", "", word.split("/")[-1])
    said = f"{key}={word}: expected a name, not a file or path"
    if command.composes(f"{group}={name}"):
        return f"{said}; did you mean {key}={name}?"
    if group == "data":
        return f"{said}; did you mean data.path={word}?"
    from elman.config.habits import choices

    best = nearest(name, choices(group))
    hint = f"did you mean {key}={best}?" if best else f"{_listed_by(group)} lists the choices"
    return f"{said}; {hint}"


class _Command:
    """The overrides of a command, and the choices of the groups among them."""

    def __init__(self, overrides: Sequence[str], compose: Compose) -> None:
        self.overrides, self._compose = overrides, compose

    def typed(self, key: str) -> str:
        """Return the override of ``key`` as typed, or the key alone if a file sets it."""
        found = [text for text in self.overrides if text.lstrip("+~").split("=", 1)[0] == key]
        return found[-1] if found else key

    def sweeps(self, group: str) -> bool:
        """Whether the command gives a group several choices."""
        return re.search(r"[,*]|choice\(|glob\(", self.typed(group).partition("=")[2]) is not None

    def value(self, key: str) -> str:
        """Return the value that the command gives to ``key``."""
        return self.typed(key).partition("=")[2] or "..."

    def composes(self, override: str) -> bool:
        """Whether one override that chooses from a group composes on its own."""
        try:
            self._composed([override])
        except Exception:  # the choice does not exist, or has an error of its own
            return False
        return True

    def _composed(self, overrides: Sequence[str]) -> DictConfig:
        return self._compose(overrides)

    def tree(self) -> Mapping[str, Any] | None:
        """Return the sections that the command's groups choose, or None if they do not compose."""
        groups = [
            text
            for text in self.overrides
            if re.match(r"(mode|model|data|optim|launcher|benchmark)=", text)
        ]
        try:
            tree = OmegaConf.to_container(self._composed(groups), resolve=False)
        except Exception:  # the groups have an error of their own
            return None
        assert isinstance(tree, dict)
        return {str(key): section for key, section in tree.items()}


def _unknown_key(match: re.Match[str], error: Exception, command: _Command) -> str:
    from elman.config.known_keys import known_keys, unknown_key, whole_section
    from elman.config.run_config import RunConfig

    key = match[1]
    if is_hydra_key(key):
        return f"{command.typed(key)}: Hydra has no such setting; `elman --cfg hydra` prints them"
    value, tree = command.value(key), command.tree()
    if key == "cell":
        return f"cell={value}: a model names its cell; choose a model, as in model=e88_tiny"
    section, _, name = key.rpartition(".")
    if section in ("", "train", "model") and name in GROUPS_ELSEWHERE:
        from elman.config.habits import group_override

        return f"{key}={value}: no such setting; did you mean {group_override(name, value)}?"
    if group := _group_meant(key, value):
        return f"{key}={value}: no such group; did you mean {group}={value}?"
    if key in RunConfig.model_fields and tree is not None and key in tree:
        return whole_section(key, value)
    line = unknown_key(key, value, tree)
    group = key.partition(".")[0]
    if command.sweeps(group) and key in known_keys():
        # Hydra composes once without the swept groups, and refuses what their default lacks.
        swept = command.typed(group)
        line = f"{key}: before {swept} is swept, nothing has this setting; type ++{key}={value}"
    return line


def _group_meant(key: str, value: str) -> str | None:
    """Return the group that offers ``value``, if ``key`` is close to the group's name."""
    folder = Path(str(files("elman.conf")))
    if len(value) > _LONGEST_NAME:
        return None  # no file can have that name
    groups = [path.parent.name for path in folder.glob(f"*/{glob.escape(value)}.yaml")]
    return nearest(key, groups) if "." not in key else None


def _missing_choice(match: re.Match[str], error: Exception, command: _Command) -> str:
    group, _, choice = match[1].rpartition("/")
    for override in command.overrides:
        key, _, value = override.lstrip("+").partition("=")
        if f"{key.split('@')[0]}/{value}" == match[1]:
            group, choice = key, value
    options = _options(error)
    parent = re.match(r"In '([^']+)'", str(error))
    in_file = parent and parent[1] not in ("config", "hydra/config") and f" (in {parent[1]}.yaml)"
    if group == "cell":
        from elman.models.cells import registry

        known = registry.cells()
        advice = nearest(choice, known) or ", ".join(known)
        return f"cell {choice}: no such cell{in_file or ''}; write /cell/{advice}@_here_"
    if not options:
        return f"{group or match[1]}={choice}: no such file{in_file or ''}; choose one by its name"
    if group == "data" and (os.path.lexists(os.path.expanduser(choice)) or "." in choice):
        return f"data={choice}: expected a name, not a file; did you mean data.path={choice}?"
    if group == "model" and Path(str(files("elman.conf")), "benchmark", f"{choice}.yaml").exists():
        return f"model={choice}: a suite has this name; did you mean benchmark={choice}?"
    best = _choice_meant(group, choice, options)
    advice = f"did you mean {group}={best}?" if best else _all_choices(group, options)
    noun = _NOUNS.get(group, f"choice of {group}")
    return f"{group}={choice}: no such {noun}{in_file or ''}; {advice}"


def _choice_meant(group: str, choice: str, options: Sequence[str]) -> str | None:
    """Return the choice that was meant: by its name elsewhere, or by its letters."""
    from elman.config.habits import model_named

    if group == "model" and choice:
        return model_named(choice, options) or nearest(choice, options)
    elsewhere = MODES_ELSEWHERE.get(choice.lower()) if group == "mode" else None
    return elsewhere or nearest(choice, options)


_NOUNS = {
    "model": "model",
    "mode": "mode",
    "optim": "optimiser",
    "data": "data",
    "benchmark": "suite",
}
_LISTED_BY = {"model": "`elman mode=models`", "benchmark": "`elman mode=suites`"}


def _listed_by(group: str) -> str:
    return _LISTED_BY.get(group, "`elman --help`")


def _all_choices(group: str, options: Sequence[str]) -> str:
    """Return what lists the choices of a group, or the choices if they are few."""
    if len(options) <= _LONGEST_LIST:
        return f"choices: {', '.join(options)}"
    if group == "data":
        return "`elman mode=tasks` lists tasks, and data.path=<file> names text"
    return f"{_listed_by(group)} lists the choices"


def _options(error: Exception) -> list[str]:
    if isinstance(error, MissingConfigException) and error.options:
        return list(error.options)
    listed = re.search(r"Available options[^\n]*:\n((?:\t[^\n]+\n?)+)", str(error))
    return listed[1].split() if listed else []


def _comma_list(match: re.Match[str], error: Exception, command: _Command) -> str:
    key, _, value = match[1].partition("=")
    if key == "benchmark":
        return several_suites(match[1])
    line = f"{match[1]}: several values need -m, as in elman -m {_in_shell(match[1])}"
    if "," not in value or "(" in value or not key.endswith("path"):
        return line
    return f"{line}; for one list type {_in_shell(f'{key}=[{value}]')}"


def several_suites(typed: str) -> str:
    """Return the error for several suites in one command."""
    first, *_ = typed.partition("=")[2].strip("[]").split(",")
    return f"{typed}: one suite at a time; type a command for each, as in benchmark={first}"


def _drop_plus(match: re.Match[str], error: Exception, command: _Command) -> str:
    typed = command.typed(match[1])
    return f"{typed}: {match[1]} is already set; drop the +: {typed.lstrip('+')}"


def _twice(match: re.Match[str], error: Exception, command: _Command) -> str:
    if command.typed(match[1]).startswith("+"):
        return _drop_plus(match, error, command)
    return f"{match[1]}: chosen twice; in a file's defaults write it as: override /{match[1]}"


def _cannot_remove(key: str) -> str:
    """Return the line for ``~key``."""
    if "." not in key:
        return f"~{key}: a group cannot be left out; drop ~{key}"
    return f"~{key}: settings cannot be removed; give it a value, as in {key}=null, or drop ~{key}"


def _other_package(match: re.Match[str], error: Exception, command: _Command) -> str:
    group = match[1].split("@")[0].split("/")[0]
    typed = command.typed(match[1])
    value = command.value(match[1])
    known = _group_meant(group, value)
    hint = f"did you mean {known}={value}?" if known else "`elman --help` lists the groups"
    return f"{typed}: no such group; {hint}"


def _must_choose(match: re.Match[str], error: Exception, command: _Command) -> str:
    options = _options(error)
    return f"{match[1]}: not chosen; choices: {', '.join(options)}"


def _no_choice(match: re.Match[str], error: Exception, command: _Command) -> str:
    for override in command.overrides:
        key, _, value = override.partition("=")
        if "." not in key and re.fullmatch(r"null|true|false|[-+.\d]+|[{\[].*|", value):
            return (
                f"{override}: expected the name of a file in {key}/; {_listed_by(key)} lists them"
            )
    return "a group expects a config name; `elman --help` lists the choices"


def _hydra_sweep(match: re.Match[str], error: Exception, command: _Command) -> str:
    return f"{match[1]}: Hydra's own settings cannot be swept; give it one value"


def _mode_contradicted(match: re.Match[str], error: Exception, command: _Command) -> str:
    for mode in ("mode=suites", "mode=tasks"):
        if mode in command.overrides:
            return f"{mode}: starts no run; drop -m"
    return "hydra.mode=RUN: contradicts -m; drop one of them"


def _searchpath(match: re.Match[str], error: Exception, command: _Command) -> str:
    return f"hydra.searchpath: {match[1]} does not exist; name an existing folder, as file://FOLDER"


def _primary(match: re.Match[str], error: Exception, command: _Command) -> str:
    return f"--config-name {match[1]}: no such file; drop the flag, or add its --config-dir"


def _primary_folder(match: re.Match[str], error: Exception, command: _Command) -> str:
    return f"--config-path: {match[1]} does not exist; drop the flag: --config-dir adds your own"


_Line = Callable[[re.Match[str], Exception, _Command], str]
# Patterns for Hydra's texts, tried in this order.
_PATTERNS: list[tuple[str, _Line]] = [
    (r"Cannot find primary config '([^']+)'", _primary),
    (r"Primary config (?:directory|module)[\s\S]*?'([^']+)'", _primary_folder),
    (r"Could not (?:find|load) '([^']+)'", _missing_choice),
    (r"Could not override '([^'@]+@[^']*)'", _other_package),
    (r"Could not override '([^'.]+/[^']*)'", _other_package),
    (r"config group '([^']+)' does not exist", _other_package),
    (r"Could not override '([^']+)'", _unknown_key),
    (r"Ambiguous value for argument '([^\n]+)'\n", _comma_list),
    (r"Sweep parameters '(.+)' requires", _comma_list),
    (r"Sweeping over Hydra's configuration is not supported : '(.+)'", _hydra_sweep),
    (r"An item is already at '([^']+)'", _drop_plus),
    (r"^(\S+) appears more than once", _drop_plus),
    (r"^Multiple values for (\S+?)\.", _twice),
    (r"force-add of config groups is not supported: '\+\+([^=']+)", _drop_plus),
    (r"You must specify '([^']+)'", _must_choose),
    (r"Config group override must be a string", _no_choice),
    (r"overriding with `hydra.mode=MULTIRUN`", _mode_contradicted),
    (r"provider=hydra\.searchpath[^,]*, path=(\S+) is not", _searchpath),
]


def _syntax(override: str, message: str, overrides: Sequence[str]) -> str:
    """Return the error for an override that the grammar cannot read."""
    key, equals, value = override.partition("=")
    if not equals:
        from elman.config.habits import word_hint

        place = overrides.index(override) + 1 if override in overrides else len(overrides)
        following = overrides[place] if place < len(overrides) else ""
        return word_hint(override, "" if "=" in following else following)
    if not re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w-]*([./@][\w-]+)*", key):
        return f"{override}: the key cannot be read; type it as group.key, as in train.steps=100"
    if value.startswith("="):
        return f"{override}: has one = too many; type {key}={value.lstrip('=')}"
    if evaluated := re.search(r"while evaluating '([^']+)': ([^\n]+)", message):
        return f"{override}: {evaluated[1]} fails ({evaluated[2]}); fix or quote it"
    if any(value.count(a) != value.count(b) for a, b in ("[]", "()", "{}")):
        return f"{override}: a bracket is not closed; close it, or quote the value"
    if any(value.count(mark) % 2 for mark in "'\""):
        return f"{override}: a quote is not closed; close it"
    quoted = "'" + value.replace("'", "\\'") + "'"
    return f'{override}: the value has special characters; quote it: "{key}={quoted}"'


def _tree_error(error: OmegaConfBaseException) -> str:
    """Return the error for one place of the composed tree."""
    key = str(getattr(error, "full_key", None) or "a setting")
    first = next(iter(str(error).splitlines()), "")
    if isinstance(error, MissingMandatoryValue):
        return f"{key}: missing; add {key}={_PLACEHOLDERS.get(key, '...')}"
    if isinstance(error, InterpolationKeyError):
        target = re.search(r"key '([^']+)'", first)
        return f"{key}: refers to ${{{target[1] if target else '...'}}}, which does not exist"
    if isinstance(error, UnsupportedInterpolationType | InterpolationResolutionError):
        if in_users_code(error):
            said = first.replace(" raised while resolving interpolation", "")
            place = place_of(error)
            return f"{key}: its resolver fails: {said} ({place}); {kept_traceback(error)}; fix it"
        return f"{key}: its interpolation fails ({first}); fix it or give a plain value"
    return f"{key}: {first}; `elman --cfg all` prints every setting"


_PLACEHOLDERS = {
    "eval.checkpoint": "<run folder>",
    "generate.checkpoint": "<run folder>",
    "report.dir": "<sweep folder>",
    "model.dim": "512",
    "model.depth": "4",
}


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
