"""The command line's flags: which exist, which belong together, and in what order Hydra wants them.

Hydra's own parser dies at a flag after an override (``elman model=a -m x=1,2``) and answers a
misspelled one with its whole usage text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from elman.base.errors import UserError, did_you_mean, nearest, suggest
from elman.config.keys import UNTUNED

# Each flag's long name, with its short name and the placeholder of its value.
_FLAGS: dict[str, tuple[str, str | None]] = {
    "--help": ("-h", None),
    "--version": ("", None),
    "--wide": ("", None),
    "--hydra-help": ("", None),
    "--multirun": ("-m", None),
    "--run": ("-r", None),
    "--cfg": ("-c", "job|hydra|all"),
    "--resolve": ("", None),
    "--package": ("-p", "GROUP"),
    "--info": ("-i", "all|config|defaults|defaults-tree|plugins|searchpath"),
    "--shell-completion": ("-sc", None),
    "--config-dir": ("-cd", "DIR"),
    "--config-name": ("-cn", "NAME"),
    "--config-path": ("-cp", "DIR"),
}
_LONG_NAMES = {short: long for long, (short, _) in _FLAGS.items() if short}
# Flags that make Hydra do something else than run one job; a command has at most one.
_ACTIONS = ("--run", "--multirun", "--cfg", "--info", "--shell-completion")
# Flags that say where YAML files are found; the jobs of a sweep need them too.
_SEARCH = ("--config-dir", "--config-name", "--config-path")
# The one setting whose value is any text, not a word or a path.
_PROMPT = "generate.prompt"
_COMPLETION = {"install", "uninstall", "query"}
_LIKE_A_FLAG = 0.7


@dataclass
class Arguments:
    """A parsed command line: flags by their long names, and overrides in their order."""

    flags: dict[str, str | None] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    typed: tuple[str, ...] = ()

    @property
    def for_hydra(self) -> list[str]:
        """The arguments in the one order that Hydra's parser takes; ``--wide`` is ours alone."""
        flags = {name: value for name, value in self.flags.items() if name != "--wide"}
        typed, taken = UNTUNED
        return [*self._spelled(flags), *(taken if t == typed else t for t in self.overrides)]

    @property
    def search_flags(self) -> list[str]:
        """The flags that say where YAML files are found."""
        return self._spelled([name for name in self.flags if name in _SEARCH])

    def _spelled(self, names: Sequence[str] | dict[str, str | None]) -> list[str]:
        pairs = [(name, self.flags[name]) for name in names]
        return [text for name, value in pairs for text in (name, value) if text is not None]


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a command line.

    Raises:
        UserError: a flag is unknown, lacks its value, or contradicts another.
    """
    found, rest = Arguments(typed=tuple(argv)), list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            found.overrides.append(word)
            continue
        if word == "--":
            found.overrides += rest
            break
        name, equals, value = word.partition("=")
        name = _LONG_NAMES.get(name, name)
        if name not in _FLAGS:
            raise UserError(_unknown(word, rest))
        found.flags[name] = value if equals else _take_value(name, rest)
        if equals and _FLAGS[name][1] is None:
            raise UserError(f"{word}: {name} takes no value; type {name}")
    _check(found)
    if "--multirun" not in found.flags:
        found.overrides = [_literal(override) for override in found.overrides]
    return found


def _literal(override: str) -> str:
    """Quote a prompt for Hydra, whose grammar drops outer blanks and takes ``f(x)`` for a call.

    A list and a quoted value stay as typed.
    """
    key, equals, text = override.partition("=")
    if key.lstrip("+") != _PROMPT or not text or text[0] in "[\"'":
        return override
    from hydra.core.override_parser.types import Quote, QuotedString

    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # `${...}` would refer to a setting
    quoted = QuotedString(text=plain, quote=Quote.single).with_quotes()
    return key + equals + quoted


def _take_value(name: str, rest: list[str]) -> str | None:
    placeholder = _FLAGS[name][1]
    if placeholder is None:
        return None
    if name == "--info":
        # The value is optional: the next word may be an override.
        return rest.pop(0) if rest and rest[0] in placeholder.split("|") else "all"
    if not rest or rest[0].startswith("-"):
        raise UserError(f"{name}: needs a value; type {name} {placeholder}")
    return rest.pop(0)


def _check(found: Arguments) -> None:
    for name, value in found.flags.items():
        placeholder = _FLAGS[name][1] or ""
        choices = placeholder.split("|")
        if len(choices) > 1 and value not in choices:
            hint = did_you_mean(value or "", choices)
            raise UserError(f"{name} {value}: expected one of {', '.join(choices)}{hint}")
    actions = [name for name in _ACTIONS if name in found.flags]
    if len(actions) > 1:
        raise UserError(f"{actions[0]} and {actions[1]}: give only one of them")
    if "--resolve" in found.flags and not found.flags.keys() & {"--cfg", "--help"}:
        raise UserError("--resolve: read only with --cfg; type --cfg job --resolve")
    if "--package" in found.flags and "--cfg" not in found.flags:
        raise UserError("--package: read only with --cfg; type --cfg job --package GROUP")
    if "--shell-completion" in found.flags:
        commands = [text.split("=")[0] for text in found.overrides]
        if len(commands) != 1 or commands[0] not in _COMPLETION or "=" not in found.overrides[0]:
            raise UserError("-sc: type elman -sc install=bash (or zsh, fish; or uninstall=bash)")


def _unknown(word: str, rest: Sequence[str]) -> str:
    """Return the error for an unknown flag: often a setting, typed as other programs want it."""
    from elman.config.suggestions import flag_hint

    name, _, value = word.partition("=")
    alone = not rest or rest[0].startswith("-") or "=" in rest[0]
    hint = flag_hint(name, value or ("" if alone else rest[0]))
    if hint is None:
        best = nearest(name, _FLAGS, _LIKE_A_FLAG) if word.startswith("--") else None
        hint = suggest(best) if best else "`elman --help` lists the flags"
    return f"{word}: unknown flag; {hint}"
