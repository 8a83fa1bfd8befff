"""Saves a text to continue later: its states, last bytes and number of draws, in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elman.base.errors import UserError, first_line
from elman.base.named_path import shortened
from elman.base.utf8_path import in_utf8
from elman.base.whole_file import usual_permissions, whole_file
from elman.evaluation.generation import Rows, States, Writer

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
    parts, last_b1, drawn = writer.state()
    tensors, found = {_LAST: last_b1}, []
    for place, (rows, states) in enumerate(parts):
        found.append({"rows": rows, "layers": len(states or [])})
        for number, state in enumerate(states or []):
            tensors |= {f"{place}.{number}.{name}": one for name, one in state.items()}
    tensors = {name: one.contiguous() for name, one in tensors.items()}
    note = {_NOTE: json.dumps({"model": model, "drawn": drawn, "parts": found})}
    try:
        with whole_file(path, several=True) as scratch, usual_permissions(scratch):
            save_file({name: part.cpu() for name, part in tensors.items()}, scratch, note)
    except (OSError, SafetensorError) as error:
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
        last_b1, drawn = tensors.pop(_LAST), int(found["drawn"])
        parts = _parts(found, tensors, len(last_b1), writer.device)
    except FileNotFoundError:
        raise UserError(f"generate.state={path}: no such file") from None
    except (OSError, SafetensorError, LookupError, ValueError, TypeError) as error:
        raise UserError(
            f"generate.state={path}: not a saved state ({error}); name a file that "
            "generate.save_state wrote"
        ) from None
    if found["model"] != model:
        raise UserError(
            f"generate.state={path}: saved with {found['model']}, but this is {model}; "
            "name the same checkpoint"
        )
    writer.continue_from(parts, last_b1.to(writer.device), drawn)
    return len(last_b1)


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with in_utf8(path) as named, safe_open(named, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, tensors


def _parts(
    found: dict[str, Any], tensors: dict[str, Tensor], rows: int, device: torch.device
) -> list[Rows]:
    """Return the rows that belong together, with the states of every layer.

    A file of an older version has one part, whose tensors are not numbered.
    """
    if "parts" not in found:
        tensors = {f"0.{name}": one for name, one in tensors.items()}
        found = {"parts": [{"rows": range(rows), "layers": found["layers"]}]}
    states: list[States] = [[{} for _ in range(int(p["layers"]))] for p in found["parts"]]
    for name, one in tensors.items():
        place, number, key = name.split(".", 2)
        states[int(place)][int(number)][key] = one.to(device)
    return [
        Rows(tuple(part["rows"]), whole or None)
        for part, whole in zip(found["parts"], states, strict=True)
    ]
