"""Checks ``model.layers`` against the cells that it names. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elman.base.errors import UserError, did_you_mean, nearest, suggest
from elman.config.setting_mistakes import shown
from elman.models.cells import registry
from elman.models.cells.declaration import Cell, Value
from elman.sections.layers import EVERY_ENTRY, split_entry

_FORM = "expected a cell's name or {cell: e88, n_heads: 8}, with at: [5, 11] for single layers"


def checked_layers(
    model: Mapping[str, Any], options: Mapping[str, Value], named: Iterable[str]
) -> list[dict[str, Any]] | None:
    """Return the entries of ``model.layers`` with the options that their cells have.

    Args:
        model: Section ``model``, with a known cell.
        options: The complete options of that cell.
        named: Settings of the model that the user named.

    Raises:
        UserError: an entry has no known form or cell or a wrong option, or nothing reads a setting.
    """
    given = model.get("layers")
    if given is None:
        return None
    if type(given) is int:
        raise UserError(
            f"model.layers={given}: expected a list of cells ({suggest(f'model.depth={given}')})"
        )
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise UserError(f"model.layers={shown(given)}: expected a list, as in [fla_gdn,e88]")
    found = [_checked(one, n, model, options) for n, one in enumerate(given)]
    own = [one for one in found if one["cell"] == model["cell"]]
    if not own and any("at" not in one for one in found):
        raise UserError(
            f"model.layers: names no layer of model.cell={model['cell']}, so nothing would read "
            "that cell's options; add it to the list, or choose a model of a cell in the list"
        )
    for name in named:
        _refuse_unread(name, found, own, options)
    return found


def _refuse_unread(
    name: str,
    entries: Sequence[dict[str, Any]],
    own: Sequence[dict[str, Any]],
    options: Mapping[str, Value],
) -> None:
    """Raise UserError if a setting of the model is read by none of its layers."""
    unread = name in options and all(name in one["options"] for one in own)
    unread = unread or (name == "mlp_ratio" and all(name in one for one in entries))
    if unread and any("at" not in one for one in entries):  # every layer is named
        raise UserError(f"model.{name}: every entry of model.layers says its own; drop it here")


def _checked(
    entry: Any, number: int, model: Mapping[str, Any], options: Mapping[str, Value]
) -> dict[str, Any]:
    if isinstance(entry, str):
        entry = {"cell": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("cell"), str):
        raise UserError(f"model.layers, entry {number}: {shown(entry)}: {_FORM}")
    split = split_entry(entry)
    cell, given = _cell(entry["cell"], number), split["options"]
    same = cell.name == model["cell"]
    try:
        _refuse_misspelled(entry, cell)
        whole = cell.parse_options(model["dim"], {**options, **given} if same else given)
        if isinstance(ratio := split.get("mlp_ratio"), int | float):
            cell.check_mlp(ratio)
    except UserError as error:
        line = str(error).replace("model.", "")
        raise UserError(f"model.layers, entry {number}: {line}") from None
    ratio = {"mlp_ratio": 0.0} if cell.own_norms else {}
    kept = {key: whole[key] for key in given} if same else whole
    return ratio | split | {"cell": cell.name, "options": kept}


def _refuse_misspelled(entry: Mapping[str, Any], cell: Cell) -> None:
    """Raise UserError on a key that is close to one of every entry, and to no option."""
    for key in entry:
        if key in cell.options or key in EVERY_ENTRY or nearest(key, cell.options):
            continue
        if meant := nearest(key, EVERY_ENTRY):
            raise UserError(f"{key}: no such key; {suggest(meant)}")


def _cell(name: str, number: int) -> Cell:
    """Return the cell of an entry; fla-gdn, as models are called, is fla_gdn."""
    known = registry.cells()
    found = known.get(name) or known.get(name.replace("-", "_"))
    if found is None:
        hint = did_you_mean(name, known)
        raise UserError(
            f"model.layers, entry {number}: {name}: unknown cell{hint}; cells: {', '.join(known)}"
        )
    return found
