"""Section ``probe`` of ``mode=probe``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from elman.base.errors import UserError
from elman.sections.section import Section, rounded
from elman.sections.training import DataFormat, refuse_unread

ProbePart = Literal["loss", "memory", "recall", "state", "ablation"]
"""What is measured, each by a file of ``elman.probe`` with its name."""
PARTS: tuple[ProbePart, ...] = get_args(ProbePart)
ProbeChange = Literal["replaced", "removed"]
"""What the part memory does with some bytes of the text."""
CHANGES: tuple[ProbeChange, ...] = get_args(ProbeChange)
SHORTEST = 64
"""Bytes of a document, at least."""
# `probe.parts=loss` means `probe.parts=[loss]`.
_one_or_more = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


class ProbeConfig(Section):
    """Keys of ``mode=probe``.

    Args:
        checkpoint: As ``eval.checkpoint``.
        path: Bytes to read; null is the run's own held-out tail.
        format: As ``data.format``, of ``path``.
        field: As ``data.field``, of ``path``.
        length: Bytes that are predicted in a document; null is 131,072 on a GPU, 8,192 on a CPU, or
            less where the text is short.
        documents: Evenly spaced stretches of the text; null is 8, or as many as fit.
        window: Bytes that an attention attends to; null is its own context, or its trained length
            if that has no end.
        parts: What is measured.
        changes: What the part memory does with 16 bytes: replaced by others, removed.
        seed: Seed of the random keys and values.
        paper: Also write the figures as SVG and PDF, and the table as LaTeX.
        device: As ``train.device``.
    """

    checkpoint: str
    path: str | list[str] | None = None
    format: DataFormat = "auto"
    field: str = "text"
    length: Annotated[int, rounded, Field(ge=SHORTEST)] | None = None
    documents: Annotated[int, rounded, Field(ge=2)] | None = None
    window: Annotated[int, rounded, Field(ge=2)] | None = None
    parts: Annotated[list[ProbePart], _one_or_more] = Field(default_factory=lambda: [*PARTS])
    changes: Annotated[list[ProbeChange], _one_or_more] = Field(default_factory=lambda: [*CHANGES])
    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] = 42
    paper: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _each_is_read(self) -> Self:
        refuse_unread("probe", self.path, self.format, self.field)
        _check_names("parts", self.parts)
        _check_names("changes", self.changes)
        return self


def _check_names(key: str, names: Sequence[str]) -> None:
    """Refuse an empty list, and a name that stands twice in it."""
    if not names or len(set(names)) < len(names):
        typed, known = ",".join(names), {"parts": PARTS, "changes": CHANGES}[key]
        raise UserError(
            f"probe.{key}=[{typed}]: name one or more of {', '.join(known)}, each once, as in "
            f"probe.{key}=[{known[0]}]"
        )
