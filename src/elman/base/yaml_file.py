"""Reads YAML files, and says in one line what is wrong with which file. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast; Python's own where PyYAML was built without it."""
_DEEPEST = 5000


class YamlError(ValueError):
    """A file is not a configuration; the message is the reason, without the file's name."""


def parsed_yaml(text: str | bytes) -> Any:
    """Return the content of a YAML text as plain containers.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    return yaml.load(text, FAST_LOADER if is_for_libyaml(text) else yaml.SafeLoader)


def is_for_libyaml(text: str) -> bool:
    """Return whether libyaml can parse a text.

    It dies where Python refuses 100,000 levels, of which each takes a bracket or a column. And it
    refuses the half of a surrogate pair that a path holds for a byte that is not UTF-8.
    """
    longest = max(map(len, text.splitlines()), default=0)
    deep = longest + text.count("[") + text.count("{") >= _DEEPEST
    return not deep and "\\uD" not in text


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file as plain containers, none of which contains itself.

    Raises:
        YamlError: it cannot be read, is not UTF-8, YAML or a mapping, or includes itself.
    """
    try:
        tree = parsed_yaml(path.read_text(encoding="utf-8"))
        looped = _holds_itself(tree, [], set())
    except OSError as error:
        raise YamlError(error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise YamlError(not_utf8(error)) from None
    except yaml.YAMLError as error:
        raise YamlError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise YamlError("nested too deep") from None
    if looped:
        raise YamlError("it includes itself through a YAML alias")
    if not isinstance(tree, dict):
        raise YamlError("not a configuration")
    return tree


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return in words where a text is not valid UTF-8."""
    return f"not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}"


def _holds_itself(node: Any, above: list[int], seen: set[int]) -> bool:
    """Whether a tree with aliases has a node that contains itself."""
    if not isinstance(node, dict | list):
        return False
    if id(node) in above:
        return True
    if id(node) in seen:
        return False
    seen.add(id(node))
    parts = node.values() if isinstance(node, dict) else node
    return any(_holds_itself(part, [*above, id(node)], seen) for part in parts)


def uncomposable(error: Exception) -> str | None:
    """Return the error line for a user's file on which Hydra failed; None for other errors.

    Neither Hydra nor Python names the file, so it is read from the frames of the traceback.
    """
    frames = list(_frames(error))
    if isinstance(error, RecursionError) and (loop := _loop_of_defaults(frames)):
        through = f" through {', '.join(loop[1:])}" if loop[1:] else ""
        return f"{loop[0]}: its defaults include itself{through}; remove that line"
    opened = [frame.f_locals["full_path"] for frame in frames if "full_path" in frame.f_locals]
    if not opened:
        return None
    if isinstance(error, UnicodeDecodeError):
        return f"{opened[-1]}: {not_utf8(error)}; save it as UTF-8"
    if isinstance(error, RecursionError):
        return f"{opened[-1]}: includes itself through a YAML alias, or is nested too deep; fix it"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{opened[-1]}: not YAML: {error.reason} (position {error.position}); fix it"
    return None


def _frames(error: Exception) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _loop_of_defaults(frames: list[FrameType]) -> list[str]:
    """Return the files that include one another in a circle, if Hydra followed one."""
    paths: list[str] = []
    for frame in frames:
        loaded, path = frame.f_locals.get("loaded"), frame.f_locals.get("path")
        if frame.f_code.co_name == "_create_defaults_tree_impl" and loaded is not None:
            folder = str(loaded.path).removeprefix("file://")
            paths.append(str(Path(folder, f"{path}.yaml")))
    again = [path for path in dict.fromkeys(paths) if paths.count(path) > 2]
    return sorted(again)
