"""Saves a text to continue later: its states, last bytes and number of draws, in one file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elman.base.disk import usual_permissions
from elman.base.errors import UserError, first_line
from elman.base.named_path import shortened
from elman.base.utf8_path import in_utf8
from elman.evaluation.generation import States, Writer

_LAST = "last_bytes"
_NOTE = "elman"


def save_text_state(path: Path, writer: Writer, model: str) -> None:
    """Save the state of a text; an old file of that name is replaced when the new one is whole.

    Args:
        path: The file; see :func:`elman.base.named_path.writable_file`.
        writer: The writer of the text.
        model: A name that identifies the model and its weights.

    Raises:
        UserError: the file cannot be written.
    """
    states, last_b1, drawn = writer.state()
    tensors = {_LAST: last_b1}
    for number, state in enumerate(states or []):
        tensors |= {f"{number}.{name}": part.contiguous() for name, part in state.items()}
    note = {_NOTE: json.dumps({"model": model, "drawn": drawn, "layers": len(states or [])})}
    # Not the whole name before it: the two together may be longer than a name can be.
    scratch = path.with_name(f".{path.name[:32]}.{os.getpid()}.unfinished")
    try:
        with usual_permissions(scratch):
            save_file({name: part.cpu() for name, part in tensors.items()}, scratch, note)
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise UserError(
            f"generate.save_state={shortened(str(path))}: cannot be written ({first_line(error)}); "
            "name a file elsewhere"
        ) from None


def load_text_state(path: Path, writer: Writer, model: str) -> int:
    """Set a writer to continue the text of a file; return the number of rows.

    Raises:
        UserError: the file is missing or damaged, or belongs to another model.
    """
    try:
        note, tensors = _read(path)
        found = json.loads(note[_NOTE])
        states = _states(tensors, int(found["layers"]))
        last_b1, drawn = tensors[_LAST], int(found["drawn"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"generate.state={path}: not a saved state ({error}); name a file that "
            "generate.save_state wrote"
        ) from None
    if found["model"] != model:
        raise UserError(
            f"generate.state={path}: saved with {found['model']}, but this is {model}; "
            "name the same checkpoint"
        )
    device = writer.device
    placed = [{name: part.to(device) for name, part in state.items()} for state in states]
    writer.continue_from(placed or None, last_b1.to(device), drawn)
    return len(last_b1)


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with in_utf8(path) as named, safe_open(named, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, tensors


def _states(tensors: dict[str, Tensor], layers: int) -> States:
    """Return the states of every layer."""
    states: States = [{} for _ in range(layers)]
    for name, part in tensors.items():
        if name != _LAST:
            number, _, key = name.partition(".")
            states[int(number)][key] = part
    return states
