"""Converts any text, such as a path, to a value of Hydra's override grammar, and back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from hydra.core.override_parser.overrides_parser import OverridesParser


def quoted(text: str) -> str:
    """Return ``text`` as a quoted string of Hydra's override grammar."""
    # Backslashes are escapes only before a quote, including the closing one.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"


def pasteable(key: str, text: str) -> str:
    """Return ``key=text``, quoted for the override grammar and for a shell."""
    if re.fullmatch(r"[\w./+-]+", text, flags=re.ASCII):
        return f"{key}={text}"
    return in_shell(f"{key}={quoted(text)}")


def shell_line(words: Iterable[str]) -> str:
    """Return the words of a command as a person pastes them into a shell."""
    return " ".join(map(in_shell, words))


def in_shell(word: str) -> str:
    """Return ``word`` quoted for a shell: in double quotes if it has single ones."""
    if "'" in word and not re.search(r'["$`\\!]', word):
        return f'"{word}"'
    return shlex.quote(word)


def as_override(value: object) -> str:
    """Return a setting's value (a simple type, or a list or mapping) in the override grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_override, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{as_override(one)}' for key, one in value.items())}}}"
    return quoted(value) if isinstance(value, str) else repr(value)


def unquoted(override: str) -> str:
    """Return the text that an override's value stands for."""
    value = OverridesParser.create().parse_override(override).value()
    return str(getattr(value, "text", value))
