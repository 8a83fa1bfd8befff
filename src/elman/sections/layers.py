"""Entries of ``model.layers``: the layers of a model that has several cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from elman.base.errors import UserError
from elman.sections.section import NonNegative, Section, rounded

Value = bool | int | float | str
"""Value of a cell's option."""
_one_or_more = BeforeValidator(
    lambda value: value if value is None or isinstance(value, list | tuple) else [value]
)
Place = Annotated[int, rounded, Field(ge=0)]


class LayerEntry(Section):
    """One entry of ``model.layers``: a cell's name, or a mapping with the cell's options as keys.

    ``cell`` is the cell. ``at`` are the layers that the entry stands for, counted from 0; without
    it the entry is part of the pattern, which is repeated over the depth. ``mlp_ratio`` is that of
    these layers; without it they have the model's. ``options`` are the options of the cell: all of
    them, or for the model's own cell those that differ from the model's.
    """

    cell: str
    at: Annotated[list[Place], _one_or_more, Field(min_length=1)] | None = None
    mlp_ratio: NonNegative | None = None
    options: dict[str, Value] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"cell": value}
        if isinstance(value, Mapping) and "options" not in value:
            return split_entry(value)
        return value

    @model_serializer
    def _written(self) -> str | dict[str, Any]:
        facts = {"cell": self.cell, "at": self.at, "mlp_ratio": self.mlp_ratio}
        found = {key: value for key, value in facts.items() if value is not None} | self.options
        return self.cell if len(found) == 1 else found

    def anywhere(self) -> LayerEntry:
        """Return the entry without its places."""
        return self.model_copy(update={"at": None})


EVERY_ENTRY = frozenset(LayerEntry.model_fields) - {"options"}
"""Keys that each entry may have, whatever its cell."""


def split_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as it is typed with the cell's options apart from the keys of every entry."""
    options = {key: value for key, value in entry.items() if key not in EVERY_ENTRY}
    return {key: value for key, value in entry.items() if key in EVERY_ENTRY} | {"options": options}


def stacked(entries: Sequence[LayerEntry], own: LayerEntry, depth: int) -> list[LayerEntry]:
    """Return the entry of every layer, without its places.

    Args:
        entries: ``model.layers``.
        own: The entry of a layer that they do not name.
        depth: ``model.depth``.

    Raises:
        UserError: the pattern does not fill the depth, a place is outside of it or named twice, or
            no layer is of ``own``'s cell.
    """
    pattern = [one for one in entries if one.at is None] or [own]
    if depth % len(pattern):
        fitting = max(1, depth // len(pattern)) * len(pattern)
        near = f"{fitting} or {fitting + len(pattern)}" if fitting < depth else str(fitting)
        raise UserError(
            f"model.depth={depth}: not a multiple of the {len(pattern)} layers of model.layers, "
            f"which are repeated over the depth; use model.depth={near}, or name places by at"
        )
    found = [one.anywhere() for one in pattern] * (depth // len(pattern))
    named: set[int] = set()
    for entry in entries:
        for place in entry.at or ():
            if place >= depth:
                raise UserError(
                    f"model.layers: {entry.cell} at {place}: the layers of model.depth={depth} "
                    f"are 0 to {depth - 1}"
                )
            if place in named:
                raise UserError(
                    f"model.layers: {entry.cell} at {place}: layer {place} is named twice; drop one"
                )
            named.add(place)
            found[place] = entry.anywhere()
    if all(one.cell != own.cell for one in found):
        raise UserError(
            f"model.layers: places take every layer of model.cell={own.cell}, so nothing would "
            "read that cell's options; leave it a layer, or choose a model of a cell in the list"
        )
    return found
