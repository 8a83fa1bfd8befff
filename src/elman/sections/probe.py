"""Section ``probe`` of ``mode=probe``."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from elman.base.errors import UserError
from elman.sections.section import Section, rounded
from elman.sections.training import DataFormat, refuse_unread

ProbePart = Literal["loss", "memory", "recall", "state", "ablation"]
"""What is measured, each by a file of ``elman.probe`` with its name."""
PARTS: tuple[ProbePart, ...] = get_args(ProbePart)
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
    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] = 42
    paper: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _each_is_read(self) -> Self:
        refuse_unread("probe", self.path, self.format, self.field)
        if not self.parts or len(set(self.parts)) < len(self.parts):
            typed = ",".join(self.parts)
            raise UserError(
                f"probe.parts=[{typed}]: name each part once, as in probe.parts=[{PARTS[0]}]"
            )
        return self
